//! Values between kernels in one allocation: those that are not needed at the same time lie in the same place.

use super::{EmittedKernel, SolutionEmitter};
use crate::plan::BufferOrigin;
use crate::scalar::Buffer;

/// Of an allocation's parts: what vector loads and libraries like best.
const ALIGNMENT: u64 = 256;

/// Where values lie in one allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Workspace {
    pub(super) name: String,
    /// First bytes.
    pub(super) places: Vec<(Buffer, u64)>,
    pub(super) bytes: u64,
}

/// A value from the step that writes it to the last that reads it.
struct Lifetime {
    buffer: Buffer,
    bytes: u64,
    first: usize,
    last: usize,
}

impl Workspace {
    pub(super) fn holds(&self, buffer: Buffer) -> bool {
        self.places.iter().any(|(held, _)| *held == buffer)
    }

    /// The largest first, each at the lowest place where nothing lies that lives at the same time.
    fn lay_out(name: String, mut values: Vec<Lifetime>) -> Self {
        values.sort_by_key(|value| std::cmp::Reverse(value.bytes));
        let mut laid: Vec<(u64, Lifetime)> = Vec::new();
        for value in values {
            let mut beside: Vec<(u64, u64)> = laid
                .iter()
                .filter(|(_, other)| other.first <= value.last && value.first <= other.last)
                .map(|(place, other)| (*place, place + other.bytes))
                .collect();
            beside.sort_unstable();
            let mut place = 0;
            for (start, end) in beside {
                if place + value.bytes <= start {
                    break;
                }
                place = place.max(end.next_multiple_of(ALIGNMENT));
            }
            laid.push((place, value));
        }
        let ends = laid.iter().map(|(place, value)| place + value.bytes);
        Self {
            name,
            bytes: ends.max().unwrap_or_default(),
            places: laid
                .into_iter()
                .map(|(place, value)| (value.buffer, place))
                .collect(),
        }
    }
}

impl SolutionEmitter {
    /// The values that kernels hand to each other, in one allocation, where that was chosen: less for Python to do, and less
    /// memory that has to fit into a cache.
    pub(super) fn choose_workspace(
        &mut self,
        written: &[(EmittedKernel, String)],
    ) -> Option<Workspace> {
        let mut values: Vec<Lifetime> = Vec::new();
        for (step, (kernel, _)) in written.iter().enumerate() {
            for buffer in &kernel.buffers {
                let info = &self.planned.plan.buffers[buffer.0];
                if info.origin != BufferOrigin::Computed || self.planned.returns.contains(buffer) {
                    continue;
                }
                match values.iter_mut().find(|value| value.buffer == *buffer) {
                    Some(value) => value.last = step,
                    None => values.push(Lifetime {
                        buffer: *buffer,
                        bytes: info.element.bytes()
                            * info.shape.iter().product::<i64>().unsigned_abs(),
                        first: step,
                        last: step,
                    }),
                }
            }
        }
        if values.len() < 2 {
            return None;
        }
        let elements: u64 = values.iter().map(|value| value.bytes / 4).sum();
        let knobs = &mut self.planned.plan.knobs;
        knobs.about("launcher", elements as i64);
        if !knobs.whether("one workspace", false) {
            return None;
        }
        let taken = |name: &String| self.names.contains(name) || self.module.inputs.contains(name);
        let names = (1..).map(|number| match number {
            1 => "workspace".to_owned(),
            number => format!("workspace{number}"),
        });
        let name = names.into_iter().find(|name| !taken(name))?;
        Some(Workspace::lay_out(name, values))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(number: usize, bytes: u64, first: usize, last: usize) -> Lifetime {
        Lifetime {
            buffer: Buffer(number),
            bytes,
            first,
            last,
        }
    }

    #[test]
    fn values_share_a_place_where_they_never_meet() {
        let name = || "workspace".to_owned();
        let chain = vec![
            value(0, 1000, 0, 1),
            value(1, 900, 1, 2),
            value(2, 1000, 2, 3),
        ];
        let laid = Workspace::lay_out(name(), chain);
        // The first is read for the last time before the third is written.
        assert_eq!(
            laid.places,
            [(Buffer(0), 0), (Buffer(2), 0), (Buffer(1), 1024)]
        );
        assert_eq!(laid.bytes, 1924);
        // A residual lives through all of it.
        let residual = vec![
            value(0, 512, 0, 3),
            value(1, 256, 1, 2),
            value(2, 256, 2, 3),
        ];
        let laid = Workspace::lay_out(name(), residual);
        assert_eq!(
            laid.places,
            [(Buffer(0), 0), (Buffer(1), 512), (Buffer(2), 768)]
        );
    }

    #[test]
    fn nothing_that_lives_at_the_same_time_overlaps() {
        let mut state = 7_u64;
        let mut next = |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % below
        };
        for _ in 0..50 {
            let values: Vec<Lifetime> = (0..20)
                .map(|number| {
                    let first = next(20) as usize;
                    value(number, 1 + next(5000), first, first + 1 + next(5) as usize)
                })
                .collect();
            let spans: Vec<(usize, u64, usize, usize)> = values
                .iter()
                .map(|one| (one.buffer.0, one.bytes, one.first, one.last))
                .collect();
            let laid = Workspace::lay_out("workspace".to_owned(), values);
            let place = |number: usize| {
                let found = laid.places.iter().find(|(buffer, _)| buffer.0 == number);
                found.unwrap().1
            };
            for (one, bytes, first, last) in &spans {
                assert!(place(*one) % ALIGNMENT == 0 && place(*one) + bytes <= laid.bytes);
                for (other, more, begin, end) in &spans {
                    let meet = one != other && begin <= last && first <= end;
                    let apart =
                        place(*one) + bytes <= place(*other) || place(*other) + more <= place(*one);
                    assert!(!meet || apart);
                }
            }
        }
    }
}
