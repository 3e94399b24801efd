//! Matrices in ggml's block-quantised formats, and their products with rows of `f32`.
//!
//! A file has a matrix row by row. Here sixteen rows are interleaved to a panel, of the same bits in another order, so that
//! one vector instruction multiplies all sixteen. Inputs are rounded to eight bits by block and the products summed as
//! integers. Every set of instructions does the same arithmetic in the same order: results are equal to the last bit.
//!
//! Formats without panels (`Q2_K`, `Q3_K`, `Q8_1`, `Q8_K`) are multiplied row by row in `f32`.
#![expect(
    clippy::inline_always,
    reason = "what is called in a loop over blocks must be compiled with the instructions of the loop"
)]

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "intrinsics")]
mod avx2;
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "intrinsics")]
mod avx512;
mod bits;
mod ggml;
mod input;
mod k_quants;
mod legacy;
mod multiply;
#[cfg(test)]
pub(crate) mod random;
mod simd;

use rayon::prelude::*;

use self::input::{InputForm, Inputs, RoundedInputs};
use self::multiply::{Panel, PanelProduct};
use crate::HostTensor;
use crate::products::dots;
use crate::shared_output::SharedOutput;

pub use self::ggml::{GgmlTensor, GgmlType};

/// Rows of a panel.
const PANEL_ROWS: usize = 16;

/// A matrix of `rows x columns`, as quantised as its file has it.
#[derive(Debug)]
pub struct QuantizedMatrix {
    ggml_type: GgmlType,
    rows: usize,
    columns: usize,
    storage: Storage,
}

/// Panel after panel, each with its blocks of columns in order.
#[derive(Debug)]
enum Storage {
    Q4_0(Vec<legacy::Q4_0>),
    Q4_1(Vec<legacy::Q4_1>),
    Q5_0(Vec<legacy::Q5_0>),
    Q5_1(Vec<legacy::Q5_1>),
    Q8_0(Vec<legacy::Q8_0>),
    Q4K(Vec<k_quants::Q4K>),
    Q5K(Vec<k_quants::Q5K>),
    Q6K(Vec<k_quants::Q6K>),
    /// Row by row, as in the file.
    Rows(Vec<u8>),
}

/// Runs one expression for whichever panels there are, and another where there are none.
macro_rules! with_panels {
    ($storage:expr, $panels:ident => $with:expr, $bytes:ident => $without:expr) => {
        match $storage {
            Storage::Q4_0($panels) => $with,
            Storage::Q4_1($panels) => $with,
            Storage::Q5_0($panels) => $with,
            Storage::Q5_1($panels) => $with,
            Storage::Q8_0($panels) => $with,
            Storage::Q4K($panels) => $with,
            Storage::Q5K($panels) => $with,
            Storage::Q6K($panels) => $with,
            Storage::Rows($bytes) => $without,
        }
    };
}

impl QuantizedMatrix {
    /// `None` where the tensor is not quantised or no matrix.
    pub fn new(tensor: &GgmlTensor) -> Option<Self> {
        let ggml_type = tensor.ggml_type();
        let &[rows, columns] = tensor.shape() else {
            return None;
        };
        let bytes = tensor.bytes();
        let storage = match ggml_type {
            GgmlType::F32 | GgmlType::F16 | GgmlType::Bf16 => return None,
            GgmlType::Q4_0 => Storage::Q4_0(pack(tensor.row_bytes(), bytes)),
            GgmlType::Q4_1 => Storage::Q4_1(pack(tensor.row_bytes(), bytes)),
            GgmlType::Q5_0 => Storage::Q5_0(pack(tensor.row_bytes(), bytes)),
            GgmlType::Q5_1 => Storage::Q5_1(pack(tensor.row_bytes(), bytes)),
            GgmlType::Q8_0 => Storage::Q8_0(pack(tensor.row_bytes(), bytes)),
            GgmlType::Q4K => Storage::Q4K(pack(tensor.row_bytes(), bytes)),
            GgmlType::Q5K => Storage::Q5K(pack(tensor.row_bytes(), bytes)),
            GgmlType::Q6K => Storage::Q6K(pack(tensor.row_bytes(), bytes)),
            GgmlType::Q8_1 | GgmlType::Q2K | GgmlType::Q3K | GgmlType::Q8K => {
                Storage::Rows(bytes.to_vec())
            }
        };
        Some(Self {
            ggml_type,
            rows,
            columns,
            storage,
        })
    }

    pub fn ggml_type(&self) -> GgmlType {
        self.ggml_type
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn columns(&self) -> usize {
        self.columns
    }

    /// One row as numbers.
    pub(crate) fn write_row(&self, row: usize, numbers: &mut [f32]) {
        with_panels!(
            &self.storage,
            panels => write_panel_row(panels, row, numbers),
            bytes => {
                let row_bytes = self.ggml_type.row_bytes(self.columns);
                ggml::dequantize(self.ggml_type, &bytes[row * row_bytes..][..row_bytes], numbers);
            }
        );
    }

    /// All of it as numbers.
    pub(crate) fn dequantize(&self) -> HostTensor {
        let mut numbers = HostTensor::zeros([self.rows, self.columns]);
        numbers
            .data_mut()
            .par_chunks_mut(self.columns)
            .enumerate()
            .for_each(|(row, numbers)| self.write_row(row, numbers));
        numbers
    }

    /// Products of several matrices with the same inputs, which are rounded once.
    pub(crate) fn multiply_all(matrices: &[&Self], input: &HostTensor) -> Vec<HostTensor> {
        let forms: Vec<InputForm> = matrices.iter().map(|one| one.input_form()).collect();
        let inputs = Inputs::new(input, &forms);
        let mut products: Vec<HostTensor> = matrices
            .iter()
            .map(|matrix| HostTensor::zeros([input.rows(), matrix.rows]))
            .collect();
        let outputs: Vec<SharedOutput<'_>> = products.iter_mut().map(SharedOutput::new).collect();
        // All panels of all matrices in a row, so that threads are woken once.
        let panels: Vec<usize> = matrices.iter().map(|matrix| matrix.panels()).collect();
        (0..panels.iter().sum())
            .into_par_iter()
            .with_min_len(PANELS_AT_LEAST)
            .for_each(|mut panel: usize| {
                for ((matrix, output), panels) in matrices.iter().zip(&outputs).zip(&panels) {
                    if panel < *panels {
                        return matrix.multiply_panel(panel, &inputs, output);
                    }
                    panel -= panels;
                }
            });
        drop(outputs);
        products
    }

    fn input_form(&self) -> InputForm {
        match &self.storage {
            Storage::Q4_0(_)
            | Storage::Q4_1(_)
            | Storage::Q5_0(_)
            | Storage::Q5_1(_)
            | Storage::Q8_0(_) => InputForm::Legacy,
            Storage::Q4K(_) | Storage::Q5K(_) | Storage::Q6K(_) => InputForm::K,
            Storage::Rows(_) => InputForm::Numbers,
        }
    }

    fn panels(&self) -> usize {
        self.rows.div_ceil(PANEL_ROWS)
    }

    fn multiply_panel(&self, panel: usize, inputs: &Inputs<'_>, output: &SharedOutput<'_>) {
        let first_row = panel * PANEL_ROWS;
        with_panels!(
            &self.storage,
            panels => {
                let product = PanelProduct {
                    blocks: blocks_of(panels, panel, self.columns),
                    inputs: RoundedInputs::new(inputs),
                    first_row,
                    output,
                };
                product.run();
            },
            _bytes => {
                let mut numbers = vec![0.0; self.columns];
                for row in first_row..(first_row + PANEL_ROWS).min(self.rows) {
                    self.write_row(row, &mut numbers);
                    for index in 0..inputs.numbers.rows() {
                        let mut product = [0.0];
                        dots(inputs.numbers.row(index), &numbers, &mut product);
                        output.write(index, row, &product);
                    }
                }
            }
        );
    }
}

/// Fewer panels than this are not worth another thread: waking one costs more.
const PANELS_AT_LEAST: usize = 4;

fn blocks_of<P: Panel>(panels: &[P], panel: usize, columns: usize) -> &[P] {
    let count = columns / P::COLUMNS;
    &panels[panel * count..][..count]
}

fn write_panel_row<P: Panel>(panels: &[P], row: usize, numbers: &mut [f32]) {
    let blocks = blocks_of(panels, row / PANEL_ROWS, numbers.len());
    for (block, numbers) in blocks.iter().zip(numbers.chunks_exact_mut(P::COLUMNS)) {
        block.write_row(row % PANEL_ROWS, numbers);
    }
}

/// Panels of a file's rows; what the last panel has too many is zero.
fn pack<P: Panel>(row_bytes: usize, bytes: &[u8]) -> Vec<P> {
    let block_count = row_bytes / P::BLOCK_BYTES;
    bytes
        .par_chunks(PANEL_ROWS * row_bytes)
        .flat_map_iter(|rows| {
            (0..block_count).map(move |index| {
                let blocks = rows
                    .chunks_exact(row_bytes)
                    .map(|row| &row[index * P::BLOCK_BYTES..][..P::BLOCK_BYTES]);
                P::pack(blocks)
            })
        })
        .collect()
}

// Last, where the macro is known.
#[cfg(test)]
mod tests;
