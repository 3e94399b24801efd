//! Launchers, and the `forward` that calls them.

use std::fmt::Write;

use warpsmith_schema::{OutputNesting, Target};

use super::SolutionEmitter;
use super::outline::listed;
use super::workspace::Workspace;
use crate::emit::python::{Allocation, Call, attribute};
use crate::plan::BufferOrigin;
use crate::scalar::{Buffer, ScalarType};

/// What `forward` returns, as Python writes it.
fn returned(nesting: &OutputNesting, tensors: &mut impl Iterator<Item = String>) -> String {
    match nesting {
        OutputNesting::Tensor => tensors.next().unwrap_or_default(),
        OutputNesting::Sequence(parts) => {
            let parts: Vec<String> = parts.iter().map(|part| returned(part, tensors)).collect();
            let comma = if parts.len() == 1 { "," } else { "" };
            format!("({}{comma})", parts.join(", "))
        }
        OutputNesting::Dict(parts) => {
            let part = |(key, part): &(String, OutputNesting)| {
                let key = serde_json::Value::from(key.as_str());
                format!("{key}: {}", returned(part, tensors))
            };
            let parts: Vec<String> = parts.iter().map(part).collect();
            format!("{{{}}}", parts.join(", "))
        }
    }
}

impl SolutionEmitter {
    pub(super) fn parameters(&self, read: &[Buffer], written: &[Buffer]) -> String {
        let restrict = match self.plan().target {
            Target::Cpu => "__restrict",
            Target::Cuda => "__restrict__",
        };
        let mut parts = Vec::new();
        for (buffers, is_const) in [(written, ""), (read, "const ")] {
            for buffer in buffers {
                let (room, name) = (&self.plan().buffers[buffer.0], &self.names[buffer.0]);
                let kind = room.element.c_type(self.plan().target);
                match &room.origin {
                    BufferOrigin::Constant(_) => {}
                    BufferOrigin::Scalar(_) => parts.push(format!("{is_const}{kind} {name}")),
                    _ => parts.push(format!("{is_const}{kind}* {restrict} {name}")),
                }
            }
        }
        parts.join(", ")
    }

    pub(super) fn arguments(&self, buffers: &[Buffer]) -> String {
        let passed = buffers.iter().filter(|buffer| self.is_passed(**buffer));
        let named = passed.map(|buffer| self.names[buffer.0].as_str());
        named.collect::<Vec<_>>().join(", ")
    }

    /// Whether a kernel is handed a buffer, and does not know it from its file.
    fn is_passed(&self, buffer: Buffer) -> bool {
        let origin = &self.plan().buffers[buffer.0].origin;
        !matches!(origin, BufferOrigin::Constant(_))
    }

    pub(super) fn launcher(&self, name: &str, buffers: &[Buffer], body: &str) -> String {
        let mut parts = Vec::new();
        for buffer in buffers.iter().filter(|one| self.is_passed_alone(**one)) {
            let room = &self.plan().buffers[buffer.0];
            if matches!(room.origin, BufferOrigin::Scalar(_)) {
                // As `kernels` passes Python's numbers.
                let kind = match room.element.scalar() {
                    ScalarType::Float => "double",
                    ScalarType::Int | ScalarType::Bool => "int64_t",
                };
                parts.push(format!("{kind} {}", self.names[buffer.0]));
                continue;
            }
            let is_const = if room.origin == BufferOrigin::Computed {
                ""
            } else {
                "const "
            };
            parts.push(format!(
                "{is_const}{}* {}",
                room.element.c_type(self.plan().target),
                self.names[buffer.0]
            ));
        }
        let (last, status) = match self.plan().target {
            Target::Cpu => ("void*", "0"),
            Target::Cuda => ("cudaStream_t stream", "cudaGetLastError()"),
        };
        let mut held = String::new();
        if let Some(workspace) = self.workspace_of(buffers) {
            parts.push(format!("char* {}", workspace.name));
            held = self.held(workspace);
        }
        parts.push(last.to_owned());
        format!(
            "extern \"C\" int {name}({}) {{\n{held}    {body}\n    return {status};\n}}",
            parts.join(", ")
        )
    }

    pub(super) fn call(&self, launcher: String, buffers: &[Buffer]) -> Call {
        let passed = buffers.iter().filter(|one| self.is_passed_alone(**one));
        let passed = passed.map(|buffer| self.in_python(*buffer));
        let workspace = self.workspace_of(buffers);
        let workspace = workspace.map(|workspace| workspace.name.clone());
        Call {
            launcher,
            arguments: passed.chain(workspace).collect(),
        }
    }

    /// Whether a launcher is handed a buffer by itself.
    fn is_passed_alone(&self, buffer: Buffer) -> bool {
        let held = self.workspace.as_ref();
        self.is_passed(buffer) && held.is_none_or(|workspace| !workspace.holds(buffer))
    }

    /// The workspace, if some of the buffers lie there.
    fn workspace_of(&self, buffers: &[Buffer]) -> Option<&Workspace> {
        let holds = |workspace: &&Workspace| buffers.iter().any(|one| workspace.holds(*one));
        self.workspace.as_ref().filter(holds)
    }

    /// Declares what lies in the workspace.
    fn held(&self, workspace: &Workspace) -> String {
        let declared = workspace.places.iter().map(|(buffer, place)| {
            let kind = self.plan().buffers[buffer.0]
                .element
                .c_type(self.plan().target);
            format!(
                "    {kind}* {} = reinterpret_cast<{kind}*>({} + {place});\n",
                self.names[buffer.0], workspace.name
            )
        });
        declared.collect()
    }

    /// A buffer as `forward` names it.
    fn in_python(&self, buffer: Buffer) -> String {
        match &self.plan().buffers[buffer.0].origin {
            BufferOrigin::Input(position) | BufferOrigin::Scalar(position) => {
                self.module.inputs[*position].clone()
            }
            BufferOrigin::State(name) => attribute(name),
            BufferOrigin::Computed | BufferOrigin::Constant(_) => self.names[buffer.0].clone(),
        }
    }

    pub(super) fn module(&self, calls: &[Call]) -> String {
        let mut allocations = Vec::new();
        for (place, room) in self.plan().buffers.iter().enumerate() {
            let is_used = calls
                .iter()
                .any(|call| call.arguments.contains(&self.names[place]));
            if room.origin == BufferOrigin::Computed && is_used {
                allocations.push(Allocation {
                    name: self.names[place].clone(),
                    shape: room.shape.clone(),
                    dtype: room.element.torch(),
                });
            }
        }
        if let Some(workspace) = &self.workspace {
            allocations.push(Allocation {
                name: workspace.name.clone(),
                shape: vec![workspace.bytes as i64],
                dtype: "uint8",
            });
        }
        let mut tensors =
            self.planned
                .returns
                .iter()
                .zip(&self.planned.views)
                .map(|(buffer, view)| {
                    let mut text = self.in_python(*buffer);
                    if let Some(shape) = &view.shape {
                        // In brackets: a number has no dimensions.
                        let _ = write!(text, ".view([{}])", listed(shape, ", "));
                    }
                    if let Some(order) = &view.order {
                        let _ = write!(text, ".permute({})", listed(order, ", "));
                    }
                    text
                });
        let returned = match &self.nesting {
            Some(nesting) => returned(nesting, &mut tensors),
            None => tensors.collect::<Vec<String>>().join(", "),
        };
        let device = self.device();
        self.module.write(&allocations, calls, &returned, &device)
    }

    /// A tensor that lies where results are to lie.
    fn device(&self) -> String {
        let origins = || self.plan().buffers.iter().map(|room| &room.origin);
        let inputs = origins().filter_map(|origin| match origin {
            BufferOrigin::Input(position) => Some(*position),
            _ => None,
        });
        let state = || {
            origins().find_map(|origin| match origin {
                BufferOrigin::State(name) => Some(attribute(name)),
                _ => None,
            })
        };
        let input = inputs.min().map(|first| self.module.inputs[first].clone());
        input.or_else(state).unwrap_or_else(|| "self".to_owned())
    }
}
