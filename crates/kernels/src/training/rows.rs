//! Work on single rows, forward and back.

use cudarc::driver::{
    CudaView as View, CudaViewMut as ViewMut, DevicePtrMut, DeviceRepr, ValidAsZeroBits,
};

use super::layout::Shape;
use crate::launch::Spread;
use crate::{Buffer, Gpu, GpuError, bf16};

/// Parts that a sum over rows is made of: as many as there are blocks, and always the same, so that it does not depend on the
/// device.
pub const PARTS: usize = 264;

/// Whether something is added to what is there, or is the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Adding {
    Anew,
    OnTop,
}

impl Adding {
    pub(super) fn is_fresh(self) -> i32 {
        i32::from(self == Self::Anew)
    }
}

/// Places of one token in a batch: numbers `first` and so on of an order of rows.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Uses {
    pub token: u32,
    pub first: u32,
    pub count: u32,
}

#[expect(unsafe_code, reason = "plain numbers, laid out as the kernel's struct")]
// SAFETY: see the reason.
unsafe impl DeviceRepr for Uses {}

impl Uses {
    /// Rows in the order of their tokens, and each token's share of it.
    pub fn of(tokens: &[u32]) -> (Vec<u32>, Vec<Self>) {
        // Token and row as one number: quicker to sort than rows by their tokens.
        let mut keys: Vec<u64> = (0u64..)
            .zip(tokens)
            .map(|(row, token)| (u64::from(*token) << 32) | row)
            .collect();
        keys.sort_unstable();
        let order: Vec<u32> = keys.iter().map(|key| *key as u32).collect();
        let mut uses: Vec<Self> = Vec::new();
        for (place, row) in order.iter().enumerate() {
            let token = tokens[*row as usize];
            match uses.last_mut() {
                Some(last) if last.token == token => last.count += 1,
                _ => uses.push(Self {
                    token,
                    first: place as u32,
                    count: 1,
                }),
            }
        }
        (order, uses)
    }
}

/// What heads of queries and keys are turned with.
pub struct Turning<'a> {
    pub bias: Option<View<'a, f32>>,
    /// Of queries, then of keys.
    pub norms: Option<View<'a, f32>>,
    /// Cosine and sine: `[position][pair][2]`.
    pub turns: &'a Buffer<f32>,
    pub positions: &'a Buffer<u32>,
}

/// Cosine and sine of every pair at every position.
pub fn turns(frequencies: &[f32], positions: usize) -> Vec<f32> {
    let each = (0..positions).flat_map(|position| {
        frequencies.iter().flat_map(move |frequency| {
            let (sine, cosine) = (position as f64 * f64::from(*frequency)).sin_cos();
            [cosine as f32, sine as f32]
        })
    });
    each.collect()
}

/// Blocks for so many heads.
fn turning_blocks(shape: &Shape, heads: usize) -> usize {
    let at_once = THREADS / (shape.head_dim / 8);
    heads.div_ceil(at_once).min(8 * PARTS)
}

/// The longest row that a norm goes back through with so many bytes of shared memory: each warp adds up a row of its own.
pub(super) fn longest_row(shared: u32) -> usize {
    shared as usize / (WARPS * size_of::<f32>())
}

const WARPS: usize = 8;
const THREADS: usize = 32 * WARPS;

#[repr(C)]
struct AddNorm {
    out: u64,
    added: u64,
    residual: u64,
    delta: u64,
    weight: u64,
    rows: i32,
    width: i32,
    epsilon: f32,
}

#[repr(C)]
struct NormBack {
    normed: u64,
    slopes: u64,
    narrow_slopes: u64,
    parts: u64,
    residual: u64,
    weight: u64,
    rows: i32,
    width: i32,
    epsilon: f32,
    fresh: i32,
}

#[repr(C)]
struct SwigluBack {
    both: u64,
    gated: u64,
    eights: u64,
}

#[repr(C)]
struct Turn {
    out: u64,
    parts: u64,
    qkv: u64,
    bias: u64,
    norms: u64,
    turns: u64,
    positions: u64,
    rows: i32,
    heads: i32,
    kv_heads: i32,
    head_dim: i32,
    moved: i32,
    epsilon: f32,
}

#[repr(C)]
struct ColumnParts {
    parts: u64,
    rows_of: u64,
    rows: i32,
    width: i32,
}

#[repr(C)]
struct AddParts {
    sums: u64,
    parts: u64,
    count: i32,
    width: i32,
    fresh: i32,
}

#[repr(C)]
struct Clear {
    at: u64,
    eights: u64,
}

#[repr(C)]
struct Pick {
    out: u64,
    from: u64,
    picked: u64,
    rows: i32,
    count: i32,
    width: i32,
}

#[repr(C)]
struct EmbedBack {
    slopes: u64,
    row_slopes: u64,
    order: u64,
    uses: u64,
    width: i32,
}

#[expect(unsafe_code, reason = "launches kernels; sizes are checked before")]
impl Gpu {
    /// `added = residual + delta; out = added / rms(added) * weight`.
    #[expect(
        clippy::too_many_arguments,
        reason = "they are what the kernel works on"
    )]
    pub fn training_add_norm(
        &self,
        out: &mut Buffer<bf16>,
        added: Option<&mut Buffer<f32>>,
        residual: &Buffer<f32>,
        delta: Option<&Buffer<bf16>>,
        weight: &View<'_, f32>,
        rows: usize,
        epsilon: f32,
    ) -> Result<(), GpuError> {
        let width = weight.len();
        Self::reads_rows_of(width)?;
        assert!(out.len() >= rows * width && residual.len() >= rows * width);
        let added = added.map_or(0, |added| {
            assert!(added.len() >= rows * width);
            self.address(added)
        });
        assert!(delta.is_none_or(|delta| delta.len() >= rows * width));
        let asked = AddNorm {
            out: self.address(out),
            added,
            residual: self.address(residual),
            delta: self.address_if(delta),
            weight: self.address(weight),
            rows: rows as i32,
            width: width as i32,
            epsilon,
        };
        let spread = Spread::plain((rows.div_ceil(WARPS), 1, 1), THREADS);
        // SAFETY: sizes were checked; the kernel waits before it reads anything.
        unsafe { self.launch(&self.training()?.add_norm, &spread, &asked) }
    }

    /// From slopes of normed rows to those of the residual, which are added to and written once more in bfloat16; `normed`
    /// holds the former and then the normed rows. Slopes of the weight come as [`PARTS`] parts.
    #[expect(
        clippy::too_many_arguments,
        reason = "they are what the kernel works on"
    )]
    pub fn training_norm_back(
        &self,
        normed: &mut Buffer<bf16>,
        (slopes, adding): (&mut Buffer<f32>, Adding),
        narrow_slopes: &mut Buffer<bf16>,
        parts: &mut ViewMut<'_, f32>,
        residual: &Buffer<f32>,
        weight: &View<'_, f32>,
        rows: usize,
        epsilon: f32,
    ) -> Result<(), GpuError> {
        let width = weight.len();
        Self::reads_rows_of(width)?;
        let count = rows * width;
        assert!(normed.len() >= count && slopes.len() >= count && residual.len() >= count);
        assert!(narrow_slopes.len() >= count && parts.len() == PARTS * width);
        let asked = NormBack {
            normed: self.address(normed),
            slopes: self.address(slopes),
            narrow_slopes: self.address(narrow_slopes),
            parts: self.address(parts),
            residual: self.address(residual),
            weight: self.address(weight),
            rows: rows as i32,
            width: width as i32,
            epsilon,
            fresh: adding.is_fresh(),
        };
        let spread = Spread {
            shared: (WARPS * width * size_of::<f32>()) as u32,
            ..Spread::plain((PARTS, 1, 1), THREADS)
        };
        // SAFETY: sizes were checked; the kernel waits before it reads anything.
        unsafe { self.launch(&self.training()?.norm_back, &spread, &asked) }
    }

    /// `both` holds gates and factors, and then their slopes; `gated` slopes of their product, and then the product.
    pub fn training_swiglu_back(
        &self,
        both: &mut Buffer<bf16>,
        gated: &mut Buffer<bf16>,
        (rows, width): (usize, usize),
    ) -> Result<(), GpuError> {
        Self::reads_rows_of(width)?;
        assert!(both.len() >= 2 * rows * width && gated.len() >= rows * width);
        let eights = rows * width / 8;
        let asked = SwigluBack {
            both: self.address(both),
            gated: self.address(gated),
            eights: eights as u64,
        };
        let spread = Spread::plain((eights.div_ceil(THREADS), 1, 1), THREADS);
        // SAFETY: sizes were checked; the kernel waits before it reads anything.
        unsafe { self.launch(&self.training()?.swiglu_back, &spread, &asked) }
    }

    /// Bias, head norms and rotation of what the product left: into `out`, or in place where there is none.
    pub fn training_turn(
        &self,
        qkv: &mut Buffer<bf16>,
        out: Option<&mut Buffer<bf16>>,
        turning: &Turning<'_>,
        shape: &Shape,
        rows: usize,
    ) -> Result<(), GpuError> {
        assert!(qkv.len() >= rows * shape.qkv_width());
        // Values are only touched where they change or move.
        let is_all = out.is_some() || turning.bias.is_some();
        let to = out.map_or(self.address(qkv), |out| {
            assert!(out.len() >= rows * shape.qkv_width());
            self.address(out)
        });
        let asked = self.turn(turning, shape, rows, (to, self.address(qkv), 0), is_all);
        let blocks = turning_blocks(shape, rows * asked.moved as usize);
        let spread = Spread::plain((blocks, 1, 1), THREADS);
        // SAFETY: sizes were checked; positions within the turns are the caller's word.
        unsafe { self.launch(&self.training()?.turn, &spread, &asked) }
    }

    /// From slopes of turned queries and keys to slopes of what the product left, in place; with head norms `raw` is that,
    /// and slopes of the norms come as [`PARTS`] parts.
    pub fn training_turn_back(
        &self,
        slopes: &mut Buffer<bf16>,
        norms: Option<(&Buffer<bf16>, &mut Buffer<f32>)>,
        turning: &Turning<'_>,
        shape: &Shape,
        rows: usize,
    ) -> Result<(), GpuError> {
        assert!(slopes.len() >= rows * shape.qkv_width());
        assert_eq!(norms.is_some(), turning.norms.is_some());
        let (raw, parts) = match norms {
            Some((raw, parts)) => {
                assert!(raw.len() >= rows * shape.qkv_width());
                assert!(parts.len() >= PARTS * 2 * shape.head_dim);
                (self.address(raw), self.address(parts))
            }
            None => (0, 0),
        };
        let asked = self.turn(
            turning,
            shape,
            rows,
            (self.address(slopes), raw, parts),
            false,
        );
        // One for each part, where there are parts.
        let blocks = if turning.norms.is_some() {
            PARTS
        } else {
            turning_blocks(shape, rows * asked.moved as usize)
        };
        let spread = Spread::plain((blocks, 1, 1), THREADS);
        // SAFETY: sizes were checked; positions within the turns are the caller's word.
        unsafe { self.launch(&self.training()?.turn_back, &spread, &asked) }
    }

    fn turn(
        &self,
        turning: &Turning<'_>,
        shape: &Shape,
        rows: usize,
        (out, qkv, parts): (u64, u64, u64),
        with_values: bool,
    ) -> Turn {
        assert!(shape.head_dim == 64 || shape.head_dim == 128);
        assert!(
            turning
                .bias
                .as_ref()
                .is_none_or(|bias| bias.len() == shape.qkv_width())
        );
        assert!(
            turning
                .norms
                .as_ref()
                .is_none_or(|norms| norms.len() == 2 * shape.head_dim)
        );
        assert!(turning.positions.len() >= rows);
        let values = if with_values { shape.kv_heads } else { 0 };
        Turn {
            out,
            parts,
            qkv,
            bias: self.address_if(turning.bias.as_ref()),
            norms: self.address_if(turning.norms.as_ref()),
            turns: self.address(turning.turns),
            positions: self.address(turning.positions),
            rows: rows as i32,
            heads: shape.heads as i32,
            kv_heads: shape.kv_heads as i32,
            head_dim: shape.head_dim as i32,
            moved: (shape.heads + shape.kv_heads + values) as i32,
            epsilon: shape.norm_epsilon,
        }
    }

    /// Sums of columns, as [`PARTS`] parts.
    pub fn training_column_parts(
        &self,
        parts: &mut Buffer<f32>,
        of: &Buffer<bf16>,
        (rows, width): (usize, usize),
    ) -> Result<(), GpuError> {
        Self::reads_rows_of(width)?;
        assert!(parts.len() >= PARTS * width && of.len() >= rows * width);
        let asked = ColumnParts {
            parts: self.address(parts),
            rows_of: self.address(of),
            rows: rows as i32,
            width: width as i32,
        };
        let spread = Spread::plain((width.div_ceil(64), PARTS, 1), THREADS);
        // SAFETY: sizes were checked; the kernel waits before it reads anything.
        unsafe { self.launch(&self.training()?.column_parts, &spread, &asked) }
    }

    /// Several sums, each from [`PARTS`] parts: `[sum][part][number]`.
    pub fn training_add_parts(
        &self,
        (sums, adding): (&mut ViewMut<'_, f32>, Adding),
        parts: &Buffer<f32>,
        width: usize,
    ) -> Result<(), GpuError> {
        let count = sums.len() / width;
        assert!(sums.len() == count * width && parts.len() >= count * PARTS * width);
        let asked = AddParts {
            sums: self.address(sums),
            parts: self.address(parts),
            count: PARTS as i32,
            width: width as i32,
            fresh: adding.is_fresh(),
        };
        let spread = Spread::plain((width.div_ceil(32), count, 1), THREADS);
        // SAFETY: sizes were checked; the kernel waits before it reads anything.
        unsafe { self.launch(&self.training()?.add_parts, &spread, &asked) }
    }

    /// Zeros, a multiple of sixteen bytes of them.
    pub fn training_clear<T: ValidAsZeroBits>(
        &self,
        buffer: &mut impl DevicePtrMut<T>,
    ) -> Result<(), GpuError> {
        let bytes = buffer.len() * size_of::<T>();
        assert!(bytes.is_multiple_of(16));
        let eights = bytes / 16;
        let asked = Clear {
            at: buffer.device_ptr_mut(&self.stream).0,
            eights: eights as u64,
        };
        let spread = Spread::plain((eights.div_ceil(THREADS), 1, 1), THREADS);
        // SAFETY: zeros are numbers of this kind.
        unsafe { self.launch(&self.training()?.clear, &spread, &asked) }
    }

    /// `out[i] = from[picked[i]]`, and zeros where that is no row.
    pub fn training_pick(
        &self,
        out: &mut Buffer<bf16>,
        (from, rows): (&Buffer<bf16>, usize),
        picked: &View<'_, u32>,
        width: usize,
    ) -> Result<(), GpuError> {
        assert!(out.len() >= picked.len() * width && from.len() >= rows * width);
        let asked = self.picking(out, from, picked, (rows, width))?;
        let spread = Spread::plain((picked.len().div_ceil(WARPS), 1, 1), THREADS);
        // SAFETY: sizes were checked; numbers beyond the rows are left out by the kernel.
        unsafe { self.launch(&self.training()?.pick, &spread, &asked) }
    }

    /// `out[picked[i]] = from[i]`; no row may be picked twice.
    pub fn training_put_back(
        &self,
        (out, rows): (&mut Buffer<bf16>, usize),
        from: &Buffer<bf16>,
        picked: &View<'_, u32>,
        width: usize,
    ) -> Result<(), GpuError> {
        assert!(out.len() >= rows * width && from.len() >= picked.len() * width);
        let asked = self.picking(out, from, picked, (rows, width))?;
        let spread = Spread::plain((picked.len().div_ceil(WARPS), 1, 1), THREADS);
        // SAFETY: sizes were checked; numbers beyond the rows are left out by the kernel.
        unsafe { self.launch(&self.training()?.put_back, &spread, &asked) }
    }

    /// What both of them are asked.
    fn picking(
        &self,
        out: &Buffer<bf16>,
        from: &Buffer<bf16>,
        picked: &View<'_, u32>,
        (rows, width): (usize, usize),
    ) -> Result<Pick, GpuError> {
        Self::reads_rows_of(width)?;
        Ok(Pick {
            out: self.address(out),
            from: self.address(from),
            picked: self.address(picked),
            rows: rows as i32,
            count: picked.len() as i32,
            width: width as i32,
        })
    }

    /// Adds each row's slopes to those of its token's row of the table.
    pub fn training_embed_back(
        &self,
        slopes: &mut ViewMut<'_, f32>,
        (row_slopes, width): (&Buffer<f32>, usize),
        order: &Buffer<u32>,
        (uses, count): (&Buffer<Uses>, usize),
    ) -> Result<(), GpuError> {
        Self::reads_rows_of(width)?;
        assert!(uses.len() >= count);
        let asked = EmbedBack {
            slopes: self.address(slopes),
            row_slopes: self.address(row_slopes),
            order: self.address(order),
            uses: self.address(uses),
            width: width as i32,
        };
        let spread = Spread::plain((count, width.div_ceil(128), 1), THREADS);
        // SAFETY: tokens and rows that exist are the caller's word.
        unsafe { self.launch(&self.training()?.embed_back, &spread, &asked) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_ordered_by_token_and_stay_in_order_within() {
        let (order, uses) = Uses::of(&[7, 3, 7, 0, 3, 7]);
        assert_eq!(order, [3, 1, 4, 0, 2, 5]);
        let uses: Vec<_> = uses
            .iter()
            .map(|uses| (uses.token, uses.first, uses.count))
            .collect();
        assert_eq!(uses, [(0, 0, 1), (3, 1, 2), (7, 3, 3)]);
    }
}
