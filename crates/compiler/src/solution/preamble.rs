//! What stands in a kernel's file before its kernels: headers, types, what is provided, and tables.

use std::collections::BTreeSet;

use warpsmith_schema::Target;

use super::SolutionEmitter;
use crate::emit::{Helper, cpu, library as calls};
use crate::library::Library;
use crate::plan::{BufferInfo, BufferOrigin, Kernel, KernelStep, Plan};
use crate::scalar::ElementType;

impl SolutionEmitter {
    /// Tensors that are written in the file.
    pub(super) fn constants(&self) -> Vec<String> {
        let Plan {
            target, buffers, ..
        } = self.plan();
        let keyword = match target {
            Target::Cuda => "__device__ const",
            Target::Cpu => "static const",
        };
        let text = |(place, room): (usize, &BufferInfo)| match &room.origin {
            BufferOrigin::Constant(data) => Some(format!(
                "{keyword} {} {}[{}] = {{{}}};",
                room.element.c_type(*target),
                self.names[place],
                data.len(),
                data.join(", ")
            )),
            _ => None,
        };
        buffers.iter().enumerate().filter_map(text).collect()
    }

    /// Headers of narrow types that buffers have.
    fn narrow_types(&self) -> Vec<&'static str> {
        let used = |element: ElementType| {
            self.plan()
                .buffers
                .iter()
                .any(|room| room.element == element)
        };
        let types = [
            (
                ElementType::BFloat16,
                "#include <cuda_bf16.h>",
                cpu::BFLOAT16,
            ),
            (ElementType::Half, "#include <cuda_fp16.h>", cpu::HALF),
        ];
        let on_target = |(element, cuda, cpu)| match self.plan().target {
            Target::Cuda => used(element).then_some(cuda),
            Target::Cpu => used(element).then_some(cpu),
        };
        types.into_iter().filter_map(on_target).collect()
    }

    pub(super) fn preamble(&self, steps: &[KernelStep], helpers: &BTreeSet<Helper>) -> String {
        let libraries: Vec<&Library> = steps
            .iter()
            .filter_map(|step| match &step.kernel {
                Kernel::Library(library) => Some(library),
                _ => None,
            })
            .collect();
        let mut text = String::new();
        match self.plan().target {
            Target::Cpu => {
                let convolves = |one: &&Library| matches!(one, Library::Convolution(_));
                let provided = (!libraries.is_empty()).then_some(calls::GEMM);
                let vectors = libraries.iter().any(convolves);
                text.push_str(&cpu::preamble(helpers, vectors, provided));
                for part in self.narrow_types() {
                    text.push_str("\n\n");
                    text.push_str(part);
                }
            }
            Target::Cuda => {
                let alone = libraries.is_empty() && !helpers.contains(&Helper::Provided);
                text.push_str(if alone {
                    "#include <cuda_runtime.h>\n#include <cstdint>"
                } else {
                    "#include \"warpsmith.h\""
                });
                for part in self.narrow_types() {
                    text.push('\n');
                    text.push_str(part);
                }
            }
        }
        text
    }
}
