//! Stacks as a person reads them: the first line of the program's own, and whether it is forward,
//! backward, optimizer.
//!
//! A stack goes from the innermost frame outward: the allocator's C++, torch's operators, torch's
//! Python, libraries, the program. What is the program's own is told by the path: a Python file
//! outside of any folder of installed packages, of Python's own library, and of torch, which writes
//! its paths without the folder that it is installed in.

use girih_trace::{StackId, Trace};

use crate::units::printable;

/// One frame: `file:line name`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    /// The file; may be empty or `??`.
    pub file: &'a str,
    /// The line; 0 if it is not known.
    pub line: u32,
    /// The function.
    pub name: &'a str,
}

impl<'a> Frame<'a> {
    /// Takes a frame of [`Trace::frames`] apart.
    pub fn of(text: &'a str) -> Frame<'a> {
        for (at, _) in text.match_indices(':') {
            let rest = &text[at + 1..];
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            if digits > 0 && rest[digits..].starts_with(' ') {
                let line = rest[..digits].parse().unwrap_or(0);
                return Frame { file: &text[..at], line, name: &rest[digits + 1..] };
            }
        }
        Frame { file: "", line: 0, name: text }
    }

    /// True of Python code.
    pub fn is_python(&self) -> bool {
        let is_cell = self.file.starts_with('<') && self.file.ends_with('>');
        self.file.ends_with(".py") || (is_cell && self.line > 0) || self.file.contains("ipykernel")
    }

    /// True of the program's own Python code.
    pub fn is_own(&self) -> bool {
        const INSTALLED: [&str; 4] =
            ["site-packages/", "dist-packages/", "/lib/python3", "/lib64/python3"];
        const LIBRARIES: [&str; 3] = ["torch/", "functorch/", "girih/"];
        const GENERATED: [&str; 3] = ["<frozen", "<eval_with_key>", "<__array_function__"];
        let file = self.file.replace('\\', "/");
        self.is_python()
            && !INSTALLED.iter().any(|part| file.contains(part))
            && !LIBRARIES.iter().any(|part| file.starts_with(part))
            && !file.contains("/torch/")
            && !GENERATED.iter().any(|part| file.starts_with(part))
    }

    fn shown(&self) -> String {
        printable(&format!("{}:{} {}", self.file, self.line, self.name)).into_owned()
    }
}

/// What the program was doing, as far as a stack tells.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Doing {
    /// A library's workspace is made (cuBLAS, cuDNN).
    Workspace,
    /// The optimizer's step.
    Optimizer,
    /// A backward pass.
    Backward,
    /// A module's forward.
    Forward,
    /// A model is built, or moved to the device.
    Building,
    /// Anything else, or no stack.
    Unknown,
}

/// What one stack says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Told {
    /// The first line of the program's own; else of any Python; else the operator; `file:line
    /// function`.
    pub line: String,
    /// The function of that line.
    pub function: String,
    /// The file of that line.
    pub file: String,
    /// What the program was doing.
    pub doing: Doing,
    /// The innermost line of the program's that no module's forward has called, if there is one:
    /// where a loop is.
    pub caller: Option<String>,
    /// The line of the program's own that the caller leads to next; the caller itself if there is
    /// none.
    pub callee: Option<String>,
}

/// What every stack of a trace says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Stacks {
    told: Vec<Told>,
}

impl Stacks {
    /// Reads the stacks of a trace. Linear in them.
    pub fn of(trace: &Trace) -> Stacks {
        let frames: Vec<Frame<'_>> = trace.frames.iter().map(|text| Frame::of(text)).collect();
        let is_own: Vec<bool> = frames.iter().map(Frame::is_own).collect();
        let told = (trace.stacks.iter())
            .map(|stack| {
                let stack = stack.iter().filter_map(|&index| {
                    frames.get(index as usize).map(|frame| (*frame, is_own[index as usize]))
                });
                tell(&stack.collect::<Vec<_>>())
            })
            .collect();
        Stacks { told }
    }

    /// True if none was recorded.
    pub fn is_empty(&self) -> bool {
        self.told.is_empty()
    }

    /// What the program was doing. Where stacks were recorded and one is empty, no Python led
    /// there: autograd's own threads run the backward pass.
    pub fn doing(&self, stack: StackId) -> Doing {
        let without = if self.is_empty() { Doing::Unknown } else { Doing::Backward };
        self.get(stack).map_or(without, |told| told.doing)
    }

    /// What a stack says; None without one.
    pub fn get(&self, stack: StackId) -> Option<&Told> {
        if stack.is_some() { self.told.get(stack.0 as usize) } else { None }
    }
}

fn tell(stack: &[(Frame<'_>, bool)]) -> Told {
    let own = stack.iter().find(|(_, is_own)| *is_own);
    let python = || stack.iter().find(|(frame, _)| frame.is_python());
    let doing = doing(stack);
    let (line, function, file) = match own.or_else(python) {
        Some((frame, _)) => {
            let [function, file] = [frame.name, frame.file].map(|of| printable(of).into_owned());
            (frame.shown(), function, file)
        }
        None => {
            let operator = printable(&operator(stack, doing)).into_owned();
            (operator.clone(), operator, "not Python".to_owned())
        }
    };
    // Outermost first: the program's lines until a module is called.
    let calls_module = |frame: &Frame<'_>| {
        frame.name == "_call_impl" || frame.name == "_wrapped_call_impl" || frame.name == "forward"
    };
    let module = stack.iter().rposition(|(frame, _)| calls_module(frame));
    let outside = &stack[module.map_or(0, |at| at + 1)..];
    let caller = outside.iter().position(|(_, is_own)| *is_own);
    let caller_at = caller.map(|at| at + module.map_or(0, |at| at + 1));
    let callee = caller_at.map(|at| stack[..at].iter().rfind(|(_, is_own)| *is_own));
    let caller = caller_at.map(|at| stack[at].0.shown());
    let callee = match callee {
        Some(Some((frame, _))) => Some(frame.shown()),
        _ => caller.clone(),
    };
    Told { line, function, file, doing, caller, callee }
}

fn doing(stack: &[(Frame<'_>, bool)]) -> Doing {
    let any = |test: &dyn Fn(&Frame<'_>) -> bool| stack.iter().any(|(frame, _)| test(frame));
    let is_workspace = |frame: &Frame<'_>| {
        let name = frame.name;
        name.contains("Workspace") || name.contains("workspace")
    };
    let is_optimizer = |frame: &Frame<'_>| {
        let file = frame.file;
        let is_step = frame.name == "step" && frame.is_python();
        (file.contains("torch/optim/") || (is_step && file.contains("optim")))
            && frame.name != "zero_grad"
            && frame.name != "__init__"
    };
    let is_backward = |frame: &Frame<'_>| {
        frame.name.contains("autograd::Engine")
            || frame.file.contains("torch/autograd/") && frame.name == "backward"
            || frame.name == "_engine_run_backward"
    };
    let is_forward = |frame: &Frame<'_>| frame.name == "forward" || frame.name == "_call_impl";
    let is_building = |frame: &Frame<'_>| {
        matches!(frame.name, "__init__" | "_apply" | "reset_parameters" | "to" | "cuda" | "convert")
    };
    if any(&is_workspace) {
        Doing::Workspace
    } else if any(&is_optimizer) {
        Doing::Optimizer
    } else if any(&is_backward) {
        Doing::Backward
    } else if any(&is_forward) {
        Doing::Forward
    } else if any(&is_building) {
        Doing::Building
    } else {
        Doing::Unknown
    }
}

/// Of a stack without Python: the node of autograd, or the first operator beyond the allocator.
fn operator(stack: &[(Frame<'_>, bool)], doing: Doing) -> String {
    let node = stack.iter().find_map(|(frame, _)| {
        let at = frame.name.find("Backward")?;
        let start = frame.name[..at].rfind(':').map_or(0, |colon| colon + 1);
        let end = frame.name[at..].find("::").map_or(frame.name.len(), |end| at + end);
        Some(&frame.name[start..end])
    });
    let accumulates = stack.iter().any(|(frame, _)| frame.name.contains("AccumulateGrad"));
    match (node, doing) {
        (Some(node), _) => format!("backward of {node}"),
        (None, Doing::Backward) if accumulates => "backward (gradients)".to_owned(),
        (None, Doing::Backward) => "backward".to_owned(),
        (None, _) => {
            let is_inside = |name: &str| {
                const INSIDE: [&str; 5] =
                    ["torch::unwind", "gather", "CachingAllocator", "at::detail::", "empty"];
                INSIDE.iter().any(|part| name.contains(part))
            };
            let first = stack.iter().find(|(frame, _)| !is_inside(frame.name));
            first.map_or("unknown", |(frame, _)| frame.name.split('(').next().unwrap_or("")).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_taken_apart_whatever_colons_are_in_it() {
        let frame = |text| {
            let Frame { file, line, name } = Frame::of(text);
            (file, line, name)
        };
        assert_eq!(frame("/a b/train.py:42 step"), ("/a b/train.py", 42, "step"));
        assert_eq!(frame("??:0 c10::Foo(int, x::y)"), ("??", 0, "c10::Foo(int, x::y)"));
        assert_eq!(frame("C:\\a\\t.py:3 f"), ("C:\\a\\t.py", 3, "f"));
        assert_eq!(frame(":0 c10::X"), ("", 0, "c10::X"));
        assert_eq!(frame("no line"), ("", 0, "no line"));
    }

    #[test]
    fn the_program_is_what_is_in_no_folder_of_packages() {
        let own = |file: &str| Frame { file, line: 1, name: "f" }.is_own();
        for file in ["/home/me/train.py", "train.py", "<string>", "/tmp/ipykernel_1/5.py"] {
            assert!(own(file), "{file}");
        }
        for file in [
            "/usr/lib/python3.11/site-packages/x/y.py",
            "/opt/conda/lib/python3.11/threading.py",
            "torch/optim/adam.py",
            "/src/torch/nn/modules/module.py",
            "<frozen runpy>",
            "Engine.cpp",
            "??",
        ] {
            assert!(!own(file), "{file}");
        }
    }

    fn told(frames: &[&str]) -> Told {
        let frames = frames.iter().map(|text| Frame::of(text));
        tell(&frames.map(|frame| (frame, frame.is_own())).collect::<Vec<_>>())
    }

    #[test]
    fn a_stack_tells_the_line_what_was_done_and_the_loop() {
        let told = told(&[
            "??:0 at::native::empty(int)",
            "torch/nn/functional.py:9 linear",
            "/w/model.py:33 forward",
            "torch/nn/modules/module.py:1 _call_impl",
            "/w/train.py:8 train",
            "/w/train.py:20 <module>",
        ]);
        assert_eq!((&*told.line, told.doing), ("/w/model.py:33 forward", Doing::Forward));
        assert_eq!(told.caller.as_deref(), Some("/w/train.py:8 train"));
        assert_eq!(told.callee.as_deref(), Some("/w/model.py:33 forward"));
    }

    #[test]
    fn what_a_terminal_would_obey_is_in_no_line() {
        let told = told(&["/w/\u{1b}[2Jtrain.py:8 \u{7}train"]);
        assert_eq!(told.line, "/w/\\u{1b}[2Jtrain.py:8 \\u{7}train");
        assert_eq!(&*told.function, "\\u{7}train");
    }

    #[test]
    fn a_stack_without_python_is_named_by_its_node() {
        let told = told(&[
            "??:0 at::native::empty",
            "??:0 torch::autograd::generated::AddmmBackward0::apply(x)",
            "??:0 torch::autograd::Engine::thread_main(y)",
        ]);
        assert_eq!((&*told.line, told.doing), ("backward of AddmmBackward0", Doing::Backward));
        assert_eq!(told.caller, None);
    }
}
