//! Each set of instructions against the plain one, and panels against the blocks they were made of.

use super::avx2::Avx2;
use super::avx512::Avx512Vnni;
use super::random::{random_input, random_tensor};
use super::simd::Plain;
use super::*;

const WITH_PANELS: [GgmlType; 8] = [
    GgmlType::Q4_0,
    GgmlType::Q4_1,
    GgmlType::Q5_0,
    GgmlType::Q5_1,
    GgmlType::Q8_0,
    GgmlType::Q4K,
    GgmlType::Q5K,
    GgmlType::Q6K,
];
const WITHOUT_PANELS: [GgmlType; 4] = [GgmlType::Q8_1, GgmlType::Q2K, GgmlType::Q3K, GgmlType::Q8K];

/// One matrix's products with one set of instructions.
fn multiply_with(
    matrix: &QuantizedMatrix,
    input: &HostTensor,
    run: impl Fn(&dyn MultiplyPanel),
) -> HostTensor {
    let inputs = Inputs::new(input, &[matrix.input_form()]);
    let mut products = HostTensor::zeros([input.rows(), matrix.rows]);
    let output = SharedOutput::new(&mut products);
    for panel in 0..matrix.panels() {
        with_panels!(
            &matrix.storage,
            panels => run(&PanelProduct {
                blocks: blocks_of(panels, panel, matrix.columns),
                inputs: RoundedInputs::new(&inputs),
                first_row: panel * PANEL_ROWS,
                output: &output,
            }),
            _bytes => unreachable!("a format without panels")
        );
    }
    products
}

/// A panel's product of whatever format.
trait MultiplyPanel {
    fn plain(&self);
    fn avx2(&self, simd: Avx2<false>);
    fn avx_vnni(&self, simd: Avx2<true>);
    fn avx512(&self, simd: Avx512Vnni);
}

impl<P: Panel> MultiplyPanel for PanelProduct<'_, P> {
    fn plain(&self) {
        self.run_with::<_, 1>(Plain);
    }

    fn avx2(&self, simd: Avx2<false>) {
        simd.multiply(self);
    }

    fn avx_vnni(&self, simd: Avx2<true>) {
        simd.multiply(self);
    }

    fn avx512(&self, simd: Avx512Vnni) {
        simd.multiply(self);
    }
}

#[test]
fn every_set_of_instructions_gives_the_same_bits() {
    for ggml_type in WITH_PANELS {
        // The last panel is not full.
        let (rows, columns) = (41, 512);
        let matrix = QuantizedMatrix::new(&random_tensor(ggml_type, rows, columns)).unwrap();
        for count in [1, 3, 8, 9, 37] {
            let input = match count {
                // The largest inputs, all of one sign: nothing may overflow.
                3 => HostTensor::new([count, columns], vec![1.0; count * columns]),
                _ => random_input(count, columns, 5),
            };
            let plain = multiply_with(&matrix, &input, |panel| panel.plain());
            let mut others = QuantizedMatrix::multiply_all(&[&matrix, &matrix], &input);
            if let Some(simd) = Avx2::<false>::detect() {
                others.push(multiply_with(&matrix, &input, |panel| panel.avx2(simd)));
            }
            if let Some(simd) = Avx2::<true>::detect() {
                others.push(multiply_with(&matrix, &input, |panel| panel.avx_vnni(simd)));
            }
            if let Some(simd) = Avx512Vnni::detect() {
                others.push(multiply_with(&matrix, &input, |panel| panel.avx512(simd)));
            }
            for other in others {
                assert!(other == plain, "{ggml_type:?}, {count} inputs");
            }
        }
    }
}

#[test]
fn panels_are_the_same_numbers_in_another_order() {
    for ggml_type in WITH_PANELS.into_iter().chain(WITHOUT_PANELS) {
        let tensor = random_tensor(ggml_type, 41, 512);
        let matrix = QuantizedMatrix::new(&tensor).unwrap();
        assert_eq!((matrix.rows(), matrix.columns()), (41, 512));
        assert!(matrix.dequantize() == tensor.dequantize(), "{ggml_type:?}");
    }
}
