//! The stack machine that a pickle is a program for.

use super::Record;
use super::fused;
use super::heap::{Dict, Heap};
use super::literal::{is_integer, long, shown, unescape};
use super::opcode as op;
use super::source::{PickleError, PickleErrorKind, Result, Source};
use super::value::{Text, Value};
use crate::compress::Compressed;

/// Marks that may be open at once. A snapshot nests eight deep; one of user metadata a bit deeper.
const MAX_MARKS: usize = 1 << 10;
/// Values that may be on the stack at once. Python writes containers in batches of 1000.
const MAX_STACK: usize = 1 << 22;
/// Memo slots that are always accepted; beyond, a slot must be below the offset in the stream.
const MEMO_FLOOR: u64 = 1 << 16;

/// Bytes of the stream between two looks at what it has become.
const WEIGHED_EACH: u64 = 1 << 20;

/// What a pickle held.
pub(crate) struct Loaded<F> {
    pub(crate) heap: Heap<F>,
    pub(crate) root: Value,
    /// Bytes of the decompressed stream.
    pub(crate) bytes: u64,
    /// Bytes of memory that it may take.
    pub(crate) memory_max: u64,
}

/// Reads one pickle, and the rest of `input` behind it, so that a checksum at its end is verified.
pub(crate) fn load<R: Compressed, F: Record>(
    input: R,
) -> std::result::Result<Loaded<F>, PickleError> {
    let mut machine = Machine::<R, F> {
        source: Source::new(input),
        heap: Heap::new(),
        stack: Vec::new(),
        items: Vec::new(),
        marks: Vec::new(),
        memo: Vec::new(),
        weighed_at: 0,
    };
    let mut offset = 0;
    match machine.run(&mut offset) {
        Ok(root) => {
            let Machine { heap, source, .. } = machine;
            let (bytes, memory_max) = (source.offset(), source.input().memory_max());
            Ok(Loaded { heap, root, bytes, memory_max })
        }
        Err(kind) => Err(PickleError { offset, kind: *kind }),
    }
}

struct Machine<R, F> {
    source: Source<R>,
    heap: Heap<F>,
    stack: Vec<Value>,
    /// Items of a list that is read at once, for as long as that takes.
    items: Vec<Value>,
    /// Heights of the stack at which a MARK stands.
    marks: Vec<usize>,
    memo: Vec<Value>,
    /// Offset in the stream at which it was last looked at what it has become.
    weighed_at: u64,
}

impl<R: Compressed, F: Record> Machine<R, F> {
    /// Runs up to STOP and returns the root. Leaves in `offset` where the last opcode began.
    fn run(&mut self, offset: &mut u64) -> Result<Value> {
        loop {
            *offset = self.source.offset();
            if *offset - self.weighed_at >= WEIGHED_EACH {
                self.weigh(*offset)?;
            }
            let code = self.source.byte()?;
            // The opcodes of a million entries, the most frequent first; the rest is elsewhere.
            match code {
                op::BINGET => {
                    let slot = self.source.byte()?;
                    self.get(u64::from(slot))?;
                }
                op::LONG1 => {
                    let count = self.source.byte()?;
                    let value = long(self.source.short(count)?);
                    self.push(value);
                }
                op::BININT1 => {
                    let value = self.source.byte()?;
                    self.push(Value::unsigned(u64::from(value)));
                }
                op::MARK => self.mark()?,
                op::EMPTY_DICT => self.dict_at_once()?,
                op::EMPTY_LIST => self.list_at_once()?,
                op::MEMOIZE => self.memoize(code)?,
                op::SETITEMS => self.set_items(code)?,
                op::BININT => {
                    let value = i32::from_le_bytes(self.source.array()?);
                    self.push(Value::signed(i64::from(value)));
                }
                op::BININT2 => {
                    let value = u16::from_le_bytes(self.source.array()?);
                    self.push(Value::unsigned(u64::from(value)));
                }
                op::LONG_BINGET => {
                    let slot = u32::from_le_bytes(self.source.array()?);
                    self.get(u64::from(slot))?;
                }
                op::SHORT_BINUNICODE => {
                    let count = self.source.byte()?;
                    let text = self.heap.add_text(self.source.short(count)?);
                    self.push_text(text)?;
                }
                op::STOP => {
                    let root = self.pop(code)?;
                    self.source.drain()?;
                    return Ok(root);
                }
                _ => self.less_frequent(code)?,
            }
        }
    }

    /// Refuses what takes far more memory than so many compressed bytes of a recording do.
    #[cold]
    fn weigh(&mut self, offset: u64) -> Result<()> {
        self.weighed_at = offset;
        let values = (self.stack.len() + self.memo.len()) * size_of::<Value>();
        let input = self.source.input();
        let (consumed, memory_max) = (input.consumed(), input.memory_max());
        if self.heap.weight() + values as u64 > memory_max {
            return Err(Box::new(PickleErrorKind::Swells { consumed, memory_max }));
        }
        Ok(())
    }

    fn less_frequent(&mut self, code: u8) -> Result<()> {
        match code {
            op::PROTO => match self.source.byte()? {
                0..=5 => {}
                protocol => return Err(Box::new(PickleErrorKind::Protocol(protocol))),
            },
            op::FRAME => self.source.skip(8)?,
            op::NONE => self.push(Value::NONE),
            op::NEWTRUE => self.push(Value::TRUE),
            op::NEWFALSE => self.push(Value::FALSE),
            op::BINFLOAT => {
                self.source.skip(8)?;
                self.push(Value::FLOAT);
            }
            op::LONG4 => self.long4()?,
            op::INT | op::LONG | op::FLOAT => self.number_in_text(code)?,
            op::UNICODE => {
                let line = self.source.line()?;
                let text = self.heap.add_text(unescape(&line).as_bytes());
                self.push_text(text)?;
            }
            op::BINUNICODE | op::BINUNICODE8 => {
                let count = self.count(code == op::BINUNICODE8)?;
                let bytes = self.source.long(count)?;
                let text = self.heap.add_text(&bytes);
                self.push_text(text)?;
            }
            op::SHORT_BINBYTES => {
                let count = self.source.byte()?;
                self.source.skip(u64::from(count))?;
                self.push(Value::BYTES);
            }
            op::BINBYTES | op::BINBYTES8 | op::BYTEARRAY8 => {
                let count = self.count(code != op::BINBYTES)?;
                self.source.skip(count)?;
                self.push(Value::BYTES);
            }
            _ => return self.structure(code),
        }
        self.check_height()
    }

    /// The opcodes that build containers or move values, apart from the most frequent.
    fn structure(&mut self, code: u8) -> Result<()> {
        match code {
            op::LIST => {
                let start = self.pop_mark(code)?;
                let items = self.stack.split_off(start);
                self.list(&items)?;
            }
            op::DICT => {
                let start = self.pop_mark(code)?;
                let items: Vec<Value> = self.stack.drain(start..).collect();
                self.dict()?;
                let dict = self.heap.dicts.len() as u32 - 1;
                self.heap.set_items(dict, &items);
            }
            op::SETITEM => {
                let start = self.stack.len().checked_sub(2).ok_or_else(|| underflow(code))?;
                self.set_items_from(start, code)?;
            }
            op::APPEND => {
                let item = self.pop(code)?;
                self.append(&[item], code)?;
            }
            op::APPENDS => self.append_items(code)?,
            op::EMPTY_TUPLE => self.tuple(self.stack.len())?,
            op::TUPLE => {
                let start = self.pop_mark(code)?;
                self.tuple(start)?;
            }
            op::TUPLE1 | op::TUPLE2 | op::TUPLE3 => {
                let count = usize::from(code - op::TUPLE1) + 1;
                self.require(count, code)?;
                self.tuple(self.stack.len() - count)?;
            }
            op::POP => self.pop_or_mark(code)?,
            op::POP_MARK => {
                let start = self.pop_mark(code)?;
                self.stack.truncate(start);
            }
            op::DUP => {
                let top = self.top(code)?;
                self.push(top);
            }
            _ => return self.memo_in_full(code),
        }
        self.check_height()
    }

    /// The memo's opcodes, apart from the most frequent; the rest is refused.
    fn memo_in_full(&mut self, code: u8) -> Result<()> {
        match code {
            op::GET => {
                let slot = self.slot_in_text()?;
                self.get(slot)
            }
            op::PUT => {
                let slot = self.slot_in_text()?;
                self.put(slot, code)
            }
            op::BINPUT => {
                let slot = self.source.byte()?;
                self.put(u64::from(slot), code)
            }
            op::LONG_BINPUT => {
                let slot = u32::from_le_bytes(self.source.array()?);
                self.put(u64::from(slot), code)
            }
            _ => Err(self.refusal(code)),
        }
    }

    // ---- the stack

    #[inline]
    fn push(&mut self, value: Value) {
        self.stack.push(value);
    }

    fn push_text(&mut self, text: Text) -> Result<()> {
        number(self.heap.text_count())?;
        self.push(Value::text(text));
        Ok(())
    }

    /// Height at which the innermost MARK stands: what is below is out of reach.
    #[inline]
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    #[inline]
    fn require(&self, count: usize, code: u8) -> Result<()> {
        if self.stack.len() - self.floor() < count { Err(underflow(code)) } else { Ok(()) }
    }

    #[inline]
    fn top(&self, code: u8) -> Result<Value> {
        self.require(1, code)?;
        Ok(self.stack[self.stack.len() - 1])
    }

    #[inline]
    fn pop(&mut self, code: u8) -> Result<Value> {
        let top = self.top(code)?;
        self.stack.pop();
        Ok(top)
    }

    /// POP takes a MARK away if that is what is on top.
    fn pop_or_mark(&mut self, code: u8) -> Result<()> {
        if self.marks.last() == Some(&self.stack.len()) {
            self.marks.pop();
            return Ok(());
        }
        self.pop(code).map(|_| ())
    }

    #[inline]
    fn mark(&mut self) -> Result<()> {
        if self.marks.len() == MAX_MARKS {
            return Err(Box::new(PickleErrorKind::TooDeep { what: "marks", limit: MAX_MARKS }));
        }
        self.marks.push(self.stack.len());
        // Checked here and in the less frequent opcodes: often enough, and off the hottest path.
        self.check_height()
    }

    #[inline]
    fn pop_mark(&mut self, code: u8) -> Result<usize> {
        self.marks.pop().ok_or_else(|| underflow(code))
    }

    #[inline]
    fn check_height(&self) -> Result<()> {
        if self.stack.len() > MAX_STACK {
            return Err(Box::new(PickleErrorKind::TooDeep { what: "values", limit: MAX_STACK }));
        }
        Ok(())
    }

    // ---- containers

    /// A new dict; with all its items, if it becomes a record and nothing about it is odd.
    #[inline]
    fn dict_at_once(&mut self) -> Result<()> {
        let bytes = self.source.available();
        match fused::read_record(bytes, &mut self.memo, &mut self.items, &mut self.heap) {
            Some(length) => {
                self.source.consume(length);
                self.push_last_dict()
            }
            None => self.dict(),
        }
    }

    fn dict(&mut self) -> Result<()> {
        self.heap.dicts.push(Dict::EMPTY);
        self.push_last_dict()
    }

    #[inline]
    fn push_last_dict(&mut self) -> Result<()> {
        let id = number(self.heap.dicts.len() - 1)?;
        self.push(Value::dict(id));
        Ok(())
    }

    /// A new list; with all its items, if they are few and fetched from the memo.
    fn list_at_once(&mut self) -> Result<()> {
        self.items.clear();
        match fused::read_list(
            self.source.available(),
            &self.memo,
            self.memo.len(),
            &mut self.items,
        ) {
            Some((length, is_memoized)) => {
                self.source.consume(length);
                let items = std::mem::take(&mut self.items);
                self.list(&items)?;
                self.items = items;
                if is_memoized {
                    self.memoize(op::MEMOIZE)?;
                }
            }
            None => self.list(&[])?,
        }
        self.check_height()
    }

    fn list(&mut self, items: &[Value]) -> Result<()> {
        let id = number(self.heap.lists.len())?;
        self.heap.lists.add(items);
        self.push(Value::list(id));
        Ok(())
    }

    /// Makes a tuple of what is on the stack from `start` up.
    fn tuple(&mut self, start: usize) -> Result<()> {
        let items = &self.stack[start..];
        let integers = match *items {
            [first, second] => first.as_u64().zip(second.as_u64()),
            _ => None,
        };
        let tuple = match integers {
            Some(pair) => Value::pair(self.heap.pairs.id(pair)),
            None => {
                let id = number(self.heap.tuples.len())?;
                self.heap.add_tuple(items);
                Value::tuple(id)
            }
        };
        self.stack.truncate(start);
        self.push(tuple);
        Ok(())
    }

    #[inline]
    fn set_items(&mut self, code: u8) -> Result<()> {
        let start = self.pop_mark(code)?;
        self.set_items_from(start, code)
    }

    #[inline]
    fn set_items_from(&mut self, start: usize, code: u8) -> Result<()> {
        if start <= self.floor() || !(self.stack.len() - start).is_multiple_of(2) {
            return Err(underflow(code));
        }
        let target = self.stack[start - 1];
        let dict = target.as_dict().ok_or_else(|| wrong_type(code, "a dict", target))?;
        self.heap.set_items(dict, &self.stack[start..]);
        self.stack.truncate(start);
        Ok(())
    }

    fn append_items(&mut self, code: u8) -> Result<()> {
        let start = self.pop_mark(code)?;
        let items = self.stack.split_off(start);
        self.append(&items, code)
    }

    /// Appends items to the list on top of the stack.
    fn append(&mut self, items: &[Value], code: u8) -> Result<()> {
        let top = self.top(code)?;
        let list = top.as_list().ok_or_else(|| wrong_type(code, "a list", top))?;
        self.heap.lists.append(list, items);
        Ok(())
    }

    // ---- the memo

    #[inline]
    fn get(&mut self, slot: u64) -> Result<()> {
        match self.memo.get(slot as usize) {
            Some(&value) if value != Value::UNSET => {
                self.push(value);
                Ok(())
            }
            _ => Err(Box::new(PickleErrorKind::MemoUnset(slot))),
        }
    }

    #[inline]
    fn memoize(&mut self, code: u8) -> Result<()> {
        let top = self.top(code)?;
        self.memo.push(top);
        Ok(())
    }

    fn put(&mut self, slot: u64, code: u8) -> Result<()> {
        let top = self.top(code)?;
        if slot >= MEMO_FLOOR.max(self.source.offset()) {
            return Err(Box::new(PickleErrorKind::MemoSparse(slot)));
        }
        let slot = slot as usize;
        if slot >= self.memo.len() {
            self.memo.resize(slot + 1, Value::UNSET);
        }
        self.memo[slot] = top;
        Ok(())
    }

    // ---- numbers and lengths

    fn count(&mut self, is_wide: bool) -> Result<u64> {
        Ok(if is_wide {
            u64::from_le_bytes(self.source.array()?)
        } else {
            u64::from(u32::from_le_bytes(self.source.array()?))
        })
    }

    fn long4(&mut self) -> Result<()> {
        let count = u64::from(u32::from_le_bytes(self.source.array()?));
        let value = match u8::try_from(count) {
            Ok(count) => long(self.source.short(count)?),
            Err(_) => {
                self.source.skip(count)?;
                Value::HUGE
            }
        };
        self.push(value);
        Ok(())
    }

    fn number_in_text(&mut self, code: u8) -> Result<()> {
        let line = self.source.line()?;
        let text = std::str::from_utf8(&line).unwrap_or("").trim();
        let digits = text.strip_suffix('L').unwrap_or(text);
        let value = match (code, text) {
            (op::INT, "00") => Some(Value::FALSE),
            (op::INT, "01") => Some(Value::TRUE),
            (op::FLOAT, _) => text.parse::<f64>().ok().map(|_| Value::FLOAT),
            _ => match (digits.parse(), digits.parse()) {
                (Ok(value), _) => Some(Value::signed(value)),
                (_, Ok(value)) => Some(Value::unsigned(value)),
                _ => is_integer(digits).then_some(Value::HUGE),
            },
        };
        let value = value.ok_or_else(|| not_a_number(&line))?;
        self.push(value);
        Ok(())
    }

    fn slot_in_text(&mut self) -> Result<u64> {
        let line = self.source.line()?;
        let slot = std::str::from_utf8(&line).ok().and_then(|text| text.trim().parse().ok());
        slot.ok_or_else(|| not_a_number(&line))
    }

    // ---- what is refused

    #[cold]
    fn refusal(&mut self, code: u8) -> Box<PickleErrorKind> {
        let action = match code {
            op::GLOBAL | op::INST => {
                let mut name = || self.source.line().map(|line| shown(&line)).unwrap_or_default();
                format!("import `{}.{}`", name(), name())
            }
            op::STACK_GLOBAL => {
                let name = |value: &Value| value.as_text().map(|text| self.heap.text(text));
                match self.stack[..] {
                    [.., ref module, ref text] => {
                        let name = |value| shown(name(value).unwrap_or("?").as_bytes());
                        format!("import `{}.{}`", name(module), name(text))
                    }
                    _ => "import a Python name".to_owned(),
                }
            }
            op::REDUCE | op::OBJ | op::NEWOBJ | op::NEWOBJ_EX => "call a Python object".to_owned(),
            op::BUILD => "set the state of a Python object".to_owned(),
            op::PERSID | op::BINPERSID => "ask for a persistent object".to_owned(),
            op::EXT1 | op::EXT2 | op::EXT4 => "import from the extension registry".to_owned(),
            op::NEXT_BUFFER | op::READONLY_BUFFER => "take a buffer from outside".to_owned(),
            op::EMPTY_SET | op::ADDITEMS | op::FROZENSET => "build a set".to_owned(),
            _ => return Box::new(PickleErrorKind::UnknownOpcode(code)),
        };
        Box::new(PickleErrorKind::Refused { code, action })
    }
}

#[inline]
fn number(count: usize) -> Result<u32> {
    if count < Dict::MAX { Ok(count as u32) } else { Err(Box::new(PickleErrorKind::TooMany)) }
}

#[cold]
fn underflow(code: u8) -> Box<PickleErrorKind> {
    Box::new(PickleErrorKind::StackUnderflow(code))
}

#[cold]
fn wrong_type(code: u8, wanted: &'static str, found: Value) -> Box<PickleErrorKind> {
    Box::new(PickleErrorKind::Type { code, wanted, found: found.type_name() })
}

#[cold]
fn not_a_number(line: &[u8]) -> Box<PickleErrorKind> {
    Box::new(PickleErrorKind::Number(shown(line)))
}
