//! Eight rows at a time, on processors with AVX2; with its dot products of bytes (AVX-VNNI) where they are there.

use std::arch::x86_64::{
    __m256, __m256i, _mm_cvtsi32_si128, _mm_loadu_si128, _mm256_add_epi32, _mm256_and_si256,
    _mm256_cvtepi8_epi16, _mm256_cvtepi32_ps, _mm256_cvtph_ps, _mm256_dpbusd_avx_epi32,
    _mm256_fmadd_ps, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_mul_ps,
    _mm256_mullo_epi32, _mm256_or_si256, _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_epi32,
    _mm256_set1_ps, _mm256_setzero_ps, _mm256_setzero_si256, _mm256_sign_epi8, _mm256_sll_epi16,
    _mm256_slli_epi32, _mm256_srai_epi32, _mm256_srl_epi16, _mm256_srli_epi16, _mm256_storeu_ps,
    _mm256_sub_epi32,
};

use super::PANEL_ROWS;
use super::bits::Word;
use super::multiply::{Panel, PanelProduct};
use super::simd::Simd;

/// With `VNNI`, the processor has AVX-VNNI too.
#[derive(Debug, Clone, Copy)]
pub(super) struct Avx2<const VNNI: bool>(());

impl Avx2<false> {
    pub(super) fn detect() -> Option<Self> {
        let all = std::is_x86_feature_detected!("avx2")
            && std::is_x86_feature_detected!("fma")
            && std::is_x86_feature_detected!("f16c");
        all.then_some(Self(()))
    }

    pub(super) fn multiply<P: Panel>(self, product: &PanelProduct<'_, P>) {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn multiply<P: Panel>(simd: Avx2<false>, product: &PanelProduct<'_, P>) {
            product.run_with::<_, 4>(simd);
        }
        // SAFETY: the processor has these instructions, or there would be no `self`.
        unsafe { multiply(self, product) }
    }
}

impl Avx2<true> {
    pub(super) fn detect() -> Option<Self> {
        let all = std::is_x86_feature_detected!("avxvnni") && Avx2::<false>::detect().is_some();
        all.then_some(Self(()))
    }

    pub(super) fn multiply<P: Panel>(self, product: &PanelProduct<'_, P>) {
        #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
        fn multiply<P: Panel>(simd: Avx2<true>, product: &PanelProduct<'_, P>) {
            product.run_with::<_, 4>(simd);
        }
        // SAFETY: the processor has these instructions, or there would be no `self`.
        unsafe { multiply(self, product) }
    }
}

// SAFETY of all below: the processor has these instructions, or there would be no `self`; loads and stores go through
// references to as many bytes, and none need be aligned.
impl<const VNNI: bool> Simd for Avx2<VNNI> {
    const ROWS: usize = 8;
    const SIGNED_OFFSET: i32 = 0;
    type Quants = __m256i;
    type Ints = __m256i;
    type Floats = __m256;

    #[inline(always)]
    fn zero(self) -> __m256i {
        unsafe { _mm256_setzero_si256() }
    }

    #[inline(always)]
    fn load_quants(self, quants: &Word, part: usize) -> __m256i {
        unsafe { _mm256_loadu_si256(quants[8 * part..][..8].as_ptr().cast()) }
    }

    #[inline(always)]
    fn low_nibbles(self, quants: __m256i) -> __m256i {
        unsafe { _mm256_and_si256(quants, _mm256_set1_epi8(15)) }
    }

    #[inline(always)]
    fn high_nibbles(self, quants: __m256i) -> __m256i {
        unsafe { _mm256_and_si256(_mm256_srli_epi16::<4>(quants), _mm256_set1_epi8(15)) }
    }

    #[inline(always)]
    fn add_bits(self, low: __m256i, high: __m256i, left: i32, mask: u8) -> __m256i {
        unsafe {
            // Bits that come from a neighbouring byte are not in the mask.
            let shifted = if left < 0 {
                _mm256_srl_epi16(high, _mm_cvtsi32_si128(-left))
            } else {
                _mm256_sll_epi16(high, _mm_cvtsi32_si128(left))
            };
            let bits = _mm256_and_si256(shifted, _mm256_set1_epi8(mask.cast_signed()));
            _mm256_or_si256(low, bits)
        }
    }

    #[inline(always)]
    fn dot(self, sums: __m256i, quants: __m256i, input: [u8; 4]) -> __m256i {
        unsafe {
            let input = _mm256_set1_epi32(i32::from_le_bytes(input));
            if VNNI {
                return _mm256_dpbusd_avx_epi32(sums, quants, input);
            }
            // At most 2 · 127 · 127, which sixteen bits hold.
            let pairs = _mm256_maddubs_epi16(quants, input);
            _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
    }

    #[inline(always)]
    fn dot_signed(self, sums: __m256i, quants: __m256i, input: [u8; 4]) -> __m256i {
        unsafe {
            // The sign goes from the quants, which are taken for unsigned, to the input.
            let input = _mm256_set1_epi32(i32::from_le_bytes(input));
            let signed = _mm256_sign_epi8(input, quants);
            let unsigned = _mm256_sign_epi8(quants, quants);
            if VNNI {
                return _mm256_dpbusd_avx_epi32(sums, unsigned, signed);
            }
            // At most 2 · 128 · 127, which sixteen bits hold.
            let pairs = _mm256_maddubs_epi16(unsigned, signed);
            _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
    }

    #[inline(always)]
    fn load_pairs(self, pairs: &[[i8; 2]; PANEL_ROWS], part: usize) -> __m256i {
        unsafe { _mm256_cvtepi8_epi16(_mm_loadu_si128(pairs[8 * part..][..8].as_ptr().cast())) }
    }

    #[inline(always)]
    fn dot_pairs(self, sums: __m256i, pairs: __m256i, input: [i16; 2]) -> __m256i {
        let [first, second] = input.map(i32::from);
        unsafe {
            let input = _mm256_set1_epi32(first & 0xffff | second << 16);
            _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, input))
        }
    }

    #[inline(always)]
    fn first(self, pairs: __m256i) -> __m256i {
        unsafe { _mm256_srai_epi32::<16>(_mm256_slli_epi32::<16>(pairs)) }
    }

    #[inline(always)]
    fn second(self, pairs: __m256i) -> __m256i {
        unsafe { _mm256_srai_epi32::<16>(pairs) }
    }

    #[inline(always)]
    fn multiply_add(self, sums: __m256i, left: __m256i, right: __m256i) -> __m256i {
        unsafe { _mm256_add_epi32(sums, _mm256_mullo_epi32(left, right)) }
    }

    #[inline(always)]
    fn subtract(self, ints: __m256i, number: i32) -> __m256i {
        unsafe { _mm256_sub_epi32(ints, _mm256_set1_epi32(number)) }
    }

    #[inline(always)]
    fn subtract_32_times(self, left: __m256i, right: __m256i) -> __m256i {
        unsafe { _mm256_sub_epi32(left, _mm256_slli_epi32::<5>(right)) }
    }

    #[inline(always)]
    fn zero_floats(self) -> __m256 {
        unsafe { _mm256_setzero_ps() }
    }

    #[inline(always)]
    fn to_floats(self, ints: __m256i) -> __m256 {
        unsafe { _mm256_cvtepi32_ps(ints) }
    }

    #[inline(always)]
    fn load_halves(self, halves: &[u16; PANEL_ROWS], part: usize) -> __m256 {
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(halves[8 * part..][..8].as_ptr().cast())) }
    }

    #[inline(always)]
    fn splat(self, number: f32) -> __m256 {
        unsafe { _mm256_set1_ps(number) }
    }

    #[inline(always)]
    fn scale(self, floats: __m256, by: f32) -> __m256 {
        unsafe { _mm256_mul_ps(floats, _mm256_set1_ps(by)) }
    }

    #[inline(always)]
    fn fused_multiply_add(self, sums: __m256, left: __m256, right: __m256) -> __m256 {
        unsafe { _mm256_fmadd_ps(left, right, sums) }
    }

    #[inline(always)]
    fn store(self, floats: __m256, to: &mut [f32; PANEL_ROWS]) {
        unsafe { _mm256_storeu_ps(to.as_mut_ptr(), floats) }
    }
}
