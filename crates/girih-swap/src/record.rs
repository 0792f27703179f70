//! The life of one swapped tensor's record: a state machine without a GPU.
//!
//! ```text
//!              leave              release
//!   OnGpu ───────────────► Going ─────────► OnHost ──────┐
//!     ▲ ▲     keep           │                 │ fetch   │ drop
//!     │ └────────────────────┘                 ▼         ▼
//!     └─────────────────────────────────── Coming ──► Dropped
//!                       arrive
//! ```
//!
//! An executor holds such records in a table behind a lock. It asks a record what a wish means now; the record
//! answers with the device calls that it takes, in order; the executor makes them and reports. A call that failed
//! leaves the record as it was, and the same wish can be made again. Nothing here waits: what must be waited for is
//! itself one of the calls, on the device.

/// Where a tensor is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum State {
    /// Its bytes are on the GPU.
    OnGpu,
    /// A copy out was queued; its bytes are still there and may be read.
    Going,
    /// Its bytes are on the host alone.
    OnHost,
    /// Bytes on the GPU were taken, and a copy in was queued.
    Coming,
    /// Nobody will use it any more.
    Dropped,
}

/// What the executor wants of a record.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Wish {
    /// Copy it out.
    Leave,
    /// It shall stay after all.
    Keep,
    /// Its bytes are needed.
    Release,
    /// Copy it in.
    Fetch,
    /// It is about to be used.
    Use,
    /// It will not be used any more.
    Drop,
}

impl Wish {
    /// Every wish.
    pub const ALL: [Wish; 6] =
        [Wish::Leave, Wish::Keep, Wish::Release, Wish::Fetch, Wish::Use, Wish::Drop];
}

/// A call that a wish takes. Each can fail.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Call {
    /// Takes a place on the host.
    TakeHost,
    /// Queues the copy out behind what the compute stream has done so far, and records its end.
    CopyOut,
    /// Lets the compute stream wait for the end of the copy out.
    AwaitOut,
    /// Lets go of the bytes on the GPU.
    FreeGpu,
    /// Takes bytes on the GPU.
    TakeGpu,
    /// Queues the copy in behind the end of its own copy out and what the compute stream has done, and records its
    /// end.
    CopyIn,
    /// Lets the compute stream wait for the end of the copy in.
    AwaitIn,
    /// Gives the place on the host back, once the copies that use it have ended.
    FreeHost,
}

/// Why a wish cannot be met.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// A record that was dropped has nothing to be wished of.
    #[error("the tensor was dropped: nothing can be asked of it")]
    Dropped,
}

/// One record. Views of a storage share one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Record {
    state: State,
    /// Whether it has bytes on the GPU, and a place on the host.
    has_gpu: bool,
    has_host: bool,
    /// Whether a copy out may still read its bytes: nobody has waited for its end. So it is after a copy that turned
    /// out not to be needed.
    is_read: bool,
    /// The wish in progress, its calls, and how many of them were made.
    doing: Option<(Wish, &'static [Call], usize)>,
}

impl Default for Record {
    /// A tensor that was just saved.
    fn default() -> Record {
        let (state, has_gpu, has_host) = (State::OnGpu, true, false);
        Record { state, has_gpu, has_host, is_read: false, doing: None }
    }
}

impl Record {
    /// Where it is. While a wish is in progress, where it was before.
    pub fn state(&self) -> State {
        self.state
    }

    /// Whether it has bytes on the GPU.
    pub fn has_gpu(&self) -> bool {
        self.has_gpu
    }

    /// Whether it has a place on the host.
    pub fn has_host(&self) -> bool {
        self.has_host
    }

    /// The calls that a wish takes now, in order; none if it is met already.
    ///
    /// # Errors
    /// If the record was dropped and the wish is not that.
    pub fn calls(&self, wish: Wish) -> Result<&'static [Call], Refusal> {
        use Call::{AwaitIn, AwaitOut, CopyIn, CopyOut, FreeGpu, FreeHost, TakeGpu, TakeHost};
        let calls: &[Call] = match (self.state, wish) {
            (State::Dropped, Wish::Drop) => &[],
            (State::Dropped, _) => return Err(Refusal::Dropped),
            (State::OnGpu, Wish::Leave | Wish::Release) => match wish {
                Wish::Leave => &[TakeHost, CopyOut],
                _ => &[TakeHost, CopyOut, AwaitOut, FreeGpu],
            },
            (State::OnGpu, Wish::Drop) if self.is_read => &[AwaitOut, FreeGpu],
            (State::OnGpu, Wish::Drop) => &[FreeGpu],
            (State::OnGpu, _) => &[],
            (State::Going, Wish::Release) => &[AwaitOut, FreeGpu],
            // The copy out only reads: what uses the tensor meanwhile need not wait for it.
            (State::Going, Wish::Keep | Wish::Fetch | Wish::Use) => &[FreeHost],
            // The bytes may be handed to whoever writes only once they were read.
            (State::Going, Wish::Drop) => &[AwaitOut, FreeGpu, FreeHost],
            (State::Going, Wish::Leave) => &[],
            (State::OnHost, Wish::Fetch) => &[TakeGpu, CopyIn],
            (State::OnHost, Wish::Keep | Wish::Use) => &[TakeGpu, CopyIn, AwaitIn, FreeHost],
            (State::OnHost, Wish::Drop) => &[FreeHost],
            (State::OnHost, _) => &[],
            (State::Coming, Wish::Keep | Wish::Use) => &[AwaitIn, FreeHost],
            (State::Coming, Wish::Leave | Wish::Release) => match wish {
                // What comes is what is on the host: the bytes can go as soon as the copy has ended.
                Wish::Release => &[AwaitIn, FreeGpu],
                _ => &[],
            },
            (State::Coming, Wish::Drop) => &[AwaitIn, FreeGpu, FreeHost],
            (State::Coming, Wish::Fetch) => &[],
        };
        Ok(calls)
    }

    /// The next call of a wish, after those that were reported [`made`](Record::made); none once it is met. Another
    /// wish may not be begun in between.
    ///
    /// # Errors
    /// As [`Record::calls`].
    pub fn next(&mut self, wish: Wish) -> Result<Option<Call>, Refusal> {
        if let Some((own, calls, made)) = self.doing {
            debug_assert_eq!(own, wish, "a wish is in progress");
            return Ok(calls.get(made).copied());
        }
        let calls = self.calls(wish)?;
        self.doing = (!calls.is_empty()).then_some((wish, calls, 0));
        Ok(calls.first().copied())
    }

    /// The call of [`Record::next`] succeeded.
    pub fn made(&mut self) {
        let Some((wish, calls, made)) = self.doing else { return };
        match calls[made] {
            Call::TakeHost => self.has_host = true,
            Call::FreeHost => self.has_host = false,
            Call::TakeGpu => self.has_gpu = true,
            Call::FreeGpu => self.has_gpu = false,
            Call::CopyOut => self.is_read = true,
            // A copy in comes after its own copy out.
            Call::AwaitOut | Call::AwaitIn => self.is_read = false,
            Call::CopyIn => {}
        }
        self.doing = Some((wish, calls, made + 1));
        if made + 1 == calls.len() {
            self.state = self.after(wish);
            self.doing = None;
        }
    }

    /// The call of [`Record::next`] failed, and the wish is given up. What it had taken is to be given back: these
    /// calls, which the executor makes, or remembers until it can. A wish that was partly carried out beyond taking
    /// has become the nearest whole state.
    pub fn failed(&mut self) -> &'static [Call] {
        let Some((_, calls, made)) = self.doing.take() else { return &[] };
        match &calls[..made] {
            [Call::TakeHost] => {
                self.has_host = false;
                return &[Call::FreeHost];
            }
            [Call::TakeGpu] => {
                self.has_gpu = false;
                return &[Call::FreeGpu];
            }
            [.., Call::CopyOut] | [.., Call::CopyOut, Call::AwaitOut] => self.state = State::Going,
            [.., Call::CopyIn] | [.., Call::CopyIn, Call::AwaitIn] => self.state = State::Coming,
            // The bytes are gone from one side: the record is where the others are.
            [.., Call::FreeGpu] if self.has_host => self.state = State::OnHost,
            _ => {}
        }
        &[]
    }

    fn after(&self, wish: Wish) -> State {
        match (self.state, wish) {
            (_, Wish::Drop) => State::Dropped,
            (State::OnGpu, Wish::Leave) => State::Going,
            (State::OnHost, Wish::Fetch) => State::Coming,
            (_, Wish::Release) => State::OnHost,
            (_, Wish::Keep | Wish::Use) | (State::Going, Wish::Fetch) => State::OnGpu,
            (state, _) => state,
        }
    }
}
