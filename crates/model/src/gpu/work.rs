//! What a pass reads and leaves on the device, made once.

use warpsmith_kernels::{
    Buffer, DecodeScratch, DeferredNormStream, Gpu, PrefillTile, RowSample, RowSampling,
    SamplingScratch, bf16,
};

use super::{KvCapacity, Next, Part};
use crate::{ModelConfig, ModelError, Sampled};

pub(super) struct Work {
    pub(super) room: KvCapacity,
    /// Of few rows.
    pub(super) stream: DeferredNormStream,
    pub(super) residual: Buffer<f32>,
    pub(super) normed: Buffer<bf16>,
    pub(super) qkv: Buffer<bf16>,
    pub(super) attended: Buffer<bf16>,
    pub(super) delta: Buffer<bf16>,
    pub(super) both: Buffer<bf16>,
    pub(super) gated: Buffer<bf16>,
    pub(super) logits: Buffer<f32>,
    pub(super) parts: SamplingScratch,
    pub(super) decoding: SplitDecoding,
    /// Each row's token, sequence and place in it.
    pub(super) tokens: Buffer<u32>,
    pub(super) slots: Buffer<u32>,
    pub(super) positions: Buffer<u32>,
    pub(super) tiles: Buffer<PrefillTile>,
    pub(super) picked: Buffer<u32>,
    pub(super) choices: Buffer<RowSampling>,
    pub(super) steps: Buffer<u64>,
    /// For each row that asked; its token is written over `tokens` too.
    pub(super) chosen: Buffer<RowSample>,
}

/// Room for attention: sequences are split among the more blocks the fewer there are.
pub(super) struct SplitDecoding {
    /// Up to so many rows, fewest first.
    few: Vec<(usize, DecodeScratch)>,
    many: DecodeScratch,
}

impl SplitDecoding {
    fn new(gpu: &Gpu, config: &ModelConfig, rows: usize) -> Result<Self, ModelError> {
        let heads = (config.heads, config.head_dim);
        let (mut few, mut most) = (Vec::new(), 1);
        loop {
            let splits = DecodeScratch::splits_for(most, config.kv_heads, MULTIPROCESSORS);
            if splits == 1 {
                break;
            }
            few.push((most, DecodeScratch::new(gpu, most, heads, splits)?));
            most *= 2;
        }
        Ok(Self {
            few,
            many: DecodeScratch::new(gpu, rows, heads, 1)?,
        })
    }

    pub(super) fn of(&mut self, rows: usize) -> &mut DecodeScratch {
        match self.few.iter_mut().find(|(most, _)| rows <= *most) {
            Some((_, room)) => room,
            None => &mut self.many,
        }
    }
}

impl Work {
    pub(super) fn new(
        gpu: &Gpu,
        config: &ModelConfig,
        room: KvCapacity,
    ) -> Result<Self, ModelError> {
        // A batch of single tokens must fit too.
        let rows = room.rows.max(room.sequences);
        let room = KvCapacity { rows, ..room };
        let queries = config.heads * config.head_dim;
        let all = queries + 2 * config.kv_heads * config.head_dim;
        Ok(Self {
            room,
            stream: DeferredNormStream::new(gpu, config.hidden, config.norm_epsilon)?,
            residual: gpu.zeros(rows * config.hidden)?,
            normed: gpu.zeros(rows * config.hidden)?,
            qkv: gpu.zeros(rows * all)?,
            attended: gpu.zeros(rows * queries)?,
            delta: gpu.zeros(rows * config.hidden)?,
            both: gpu.zeros(rows * 2 * config.feed_forward)?,
            gated: gpu.zeros(rows * config.feed_forward)?,
            logits: gpu.zeros(room.sequences * config.vocabulary)?,
            parts: SamplingScratch::new(gpu, room.sequences, config.vocabulary)?,
            decoding: SplitDecoding::new(gpu, config, rows)?,
            tokens: gpu.zeros(rows)?,
            slots: gpu.zeros(rows)?,
            positions: gpu.zeros(rows)?,
            tiles: gpu.upload(&vec![PrefillTile::default(); rows])?,
            picked: gpu.zeros(room.sequences)?,
            choices: gpu.upload(&vec![RowSampling::GREEDY; room.sequences])?,
            steps: gpu.zeros(room.sequences)?,
            chosen: gpu.upload(&vec![RowSample::default(); room.sequences])?,
        })
    }

    /// Rows of a step of single tokens, filled up to `rows`.
    pub(super) fn tell(
        &mut self,
        gpu: &Gpu,
        next: &[Next],
        rows: usize,
        spare: u32,
    ) -> Result<(), ModelError> {
        let filler = Next {
            token: 0,
            slot: spare,
            position: 0,
            step: 0,
            choice: RowSampling::GREEDY,
        };
        let all: Vec<Next> = next
            .iter()
            .copied()
            .chain(std::iter::repeat_n(filler, rows - next.len()))
            .collect();
        gpu.write(&mut self.tokens, &column(&all, |row| row.token))?;
        gpu.write(&mut self.slots, &column(&all, |row| row.slot))?;
        gpu.write(&mut self.positions, &column(&all, |row| row.position))?;
        gpu.write(&mut self.steps, &column(&all, |row| row.step))?;
        gpu.write(&mut self.choices, &column(&all, |row| row.choice))?;
        Ok(())
    }

    /// Rows and tiles of prompts.
    pub(super) fn tell_parts(
        &mut self,
        gpu: &Gpu,
        parts: &[Part<'_>],
        picked: &[u32],
    ) -> Result<(usize, usize), ModelError> {
        let (mut tokens, mut slots, mut positions, mut tiles) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for part in parts {
            tiles.extend(part.tiles(tokens.len() as u32));
            let count = part.tokens.len();
            tokens.extend_from_slice(part.tokens);
            slots.extend(std::iter::repeat_n(part.slot, count));
            positions.extend((0..count as u32).map(|offset| part.position + offset));
        }
        gpu.write(&mut self.tokens, &tokens)?;
        gpu.write(&mut self.slots, &slots)?;
        gpu.write(&mut self.positions, &positions)?;
        gpu.write(&mut self.tiles, &tiles)?;
        gpu.write(&mut self.picked, picked)?;
        Ok((tokens.len(), tiles.len()))
    }

    pub(super) fn tell_choices(
        &mut self,
        gpu: &Gpu,
        choices: &[(RowSampling, u64)],
    ) -> Result<(), ModelError> {
        gpu.write(&mut self.choices, &column(choices, |one| one.0))?;
        gpu.write(&mut self.steps, &column(choices, |one| one.1))?;
        Ok(())
    }

    /// The first rows' tokens, once they are there.
    pub(super) fn chosen(&self, gpu: &Gpu, rows: usize) -> Result<Vec<Sampled>, ModelError> {
        let chosen = gpu.read(&self.chosen, rows)?;
        Ok(chosen
            .into_iter()
            .map(|one| Sampled {
                token: one.token,
                log_probability: one.log_probability,
            })
            .collect())
    }
}

/// Of the smallest device that kernels are shared out for; more than that do no harm.
const MULTIPROCESSORS: usize = 132;

fn column<T, U>(rows: &[T], of: impl Fn(&T) -> U) -> Vec<U> {
    rows.iter().map(of).collect()
}
