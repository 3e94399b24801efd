//! Sixteen rows at a time, on processors with AVX-512 and its dot products of bytes (VNNI).

use std::arch::x86_64::{
    __m512, __m512i, _mm_cvtsi32_si128, _mm256_loadu_si256, _mm512_add_epi32, _mm512_and_si512,
    _mm512_cvtepi8_epi16, _mm512_cvtepi32_ps, _mm512_cvtph_ps, _mm512_dpbusd_epi32,
    _mm512_dpwssd_epi32, _mm512_fmadd_ps, _mm512_loadu_si512, _mm512_mul_ps, _mm512_mullo_epi32,
    _mm512_or_si512, _mm512_set1_epi8, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps,
    _mm512_setzero_si512, _mm512_sll_epi16, _mm512_slli_epi32, _mm512_srai_epi32, _mm512_srl_epi16,
    _mm512_srli_epi16, _mm512_storeu_ps, _mm512_sub_epi32, _mm512_xor_si512,
};

use super::PANEL_ROWS;
use super::bits::Word;
use super::multiply::{Panel, PanelProduct};
use super::simd::Simd;

#[derive(Debug, Clone, Copy)]
pub(super) struct Avx512Vnni(());

impl Avx512Vnni {
    pub(super) fn detect() -> Option<Self> {
        let all = std::is_x86_feature_detected!("avx512f")
            && std::is_x86_feature_detected!("avx512bw")
            && std::is_x86_feature_detected!("avx512vnni");
        all.then_some(Self(()))
    }

    pub(super) fn multiply<P: Panel>(self, product: &PanelProduct<'_, P>) {
        #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
        fn multiply<P: Panel>(simd: Avx512Vnni, product: &PanelProduct<'_, P>) {
            product.run_with::<_, 8>(simd);
        }
        // SAFETY: the processor has these instructions, or there would be no `self`.
        unsafe { multiply(self, product) }
    }
}

// SAFETY of all below: the processor has these instructions, or there would be no `self`; loads and stores go through
// references to as many bytes, and none need be aligned.
impl Simd for Avx512Vnni {
    const ROWS: usize = 16;
    const SIGNED_OFFSET: i32 = 128;
    type Quants = __m512i;
    type Ints = __m512i;
    type Floats = __m512;

    #[inline(always)]
    fn zero(self) -> __m512i {
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    fn load_quants(self, quants: &Word, _: usize) -> __m512i {
        unsafe { _mm512_loadu_si512(quants.as_ptr().cast()) }
    }

    #[inline(always)]
    fn low_nibbles(self, quants: __m512i) -> __m512i {
        unsafe { _mm512_and_si512(quants, _mm512_set1_epi8(15)) }
    }

    #[inline(always)]
    fn high_nibbles(self, quants: __m512i) -> __m512i {
        unsafe { _mm512_and_si512(_mm512_srli_epi16::<4>(quants), _mm512_set1_epi8(15)) }
    }

    #[inline(always)]
    fn add_bits(self, low: __m512i, high: __m512i, left: i32, mask: u8) -> __m512i {
        unsafe {
            // Bits that come from a neighbouring byte are not in the mask.
            let shifted = if left < 0 {
                _mm512_srl_epi16(high, _mm_cvtsi32_si128(-left))
            } else {
                _mm512_sll_epi16(high, _mm_cvtsi32_si128(left))
            };
            let bits = _mm512_and_si512(shifted, _mm512_set1_epi8(mask.cast_signed()));
            _mm512_or_si512(low, bits)
        }
    }

    #[inline(always)]
    fn dot(self, sums: __m512i, quants: __m512i, input: [u8; 4]) -> __m512i {
        unsafe { _mm512_dpbusd_epi32(sums, quants, _mm512_set1_epi32(i32::from_le_bytes(input))) }
    }

    #[inline(always)]
    fn dot_signed(self, sums: __m512i, quants: __m512i, input: [u8; 4]) -> __m512i {
        // The instruction takes quants for unsigned: with the sign turned, they are 128 more than they were.
        let quants = unsafe { _mm512_xor_si512(quants, _mm512_set1_epi8(i8::MIN)) };
        self.dot(sums, quants, input)
    }

    #[inline(always)]
    fn load_pairs(self, pairs: &[[i8; 2]; PANEL_ROWS], _: usize) -> __m512i {
        unsafe { _mm512_cvtepi8_epi16(_mm256_loadu_si256(pairs.as_ptr().cast())) }
    }

    #[inline(always)]
    fn dot_pairs(self, sums: __m512i, pairs: __m512i, input: [i16; 2]) -> __m512i {
        let [first, second] = input.map(i32::from);
        unsafe {
            _mm512_dpwssd_epi32(
                sums,
                pairs,
                _mm512_set1_epi32(first & 0xffff | second << 16),
            )
        }
    }

    #[inline(always)]
    fn first(self, pairs: __m512i) -> __m512i {
        unsafe { _mm512_srai_epi32::<16>(_mm512_slli_epi32::<16>(pairs)) }
    }

    #[inline(always)]
    fn second(self, pairs: __m512i) -> __m512i {
        unsafe { _mm512_srai_epi32::<16>(pairs) }
    }

    #[inline(always)]
    fn multiply_add(self, sums: __m512i, left: __m512i, right: __m512i) -> __m512i {
        unsafe { _mm512_add_epi32(sums, _mm512_mullo_epi32(left, right)) }
    }

    #[inline(always)]
    fn subtract(self, ints: __m512i, number: i32) -> __m512i {
        unsafe { _mm512_sub_epi32(ints, _mm512_set1_epi32(number)) }
    }

    #[inline(always)]
    fn subtract_32_times(self, left: __m512i, right: __m512i) -> __m512i {
        unsafe { _mm512_sub_epi32(left, _mm512_slli_epi32::<5>(right)) }
    }

    #[inline(always)]
    fn zero_floats(self) -> __m512 {
        unsafe { _mm512_setzero_ps() }
    }

    #[inline(always)]
    fn to_floats(self, ints: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(ints) }
    }

    #[inline(always)]
    fn load_halves(self, halves: &[u16; PANEL_ROWS], _: usize) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(halves.as_ptr().cast())) }
    }

    #[inline(always)]
    fn splat(self, number: f32) -> __m512 {
        unsafe { _mm512_set1_ps(number) }
    }

    #[inline(always)]
    fn scale(self, floats: __m512, by: f32) -> __m512 {
        unsafe { _mm512_mul_ps(floats, _mm512_set1_ps(by)) }
    }

    #[inline(always)]
    fn fused_multiply_add(self, sums: __m512, left: __m512, right: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(left, right, sums) }
    }

    #[inline(always)]
    fn store(self, floats: __m512, to: &mut [f32; PANEL_ROWS]) {
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), floats) }
    }
}
