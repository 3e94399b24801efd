//! How each family of operators joins a chain: which values it takes, what its arguments are, what shape comes out.

mod compare;
mod matrix;
mod normalise;
mod pointwise;
mod reduce;
mod space;
mod view;

use warpsmith_schema::Dtype;

use super::builder::{GraphBuilder, GraphValueType, OperatorCall, ValueId};
use super::size::{Extent, Shape};
use crate::seeds::{OperatorFamily, OperatorSeed, SeedCatalogue, SeedVariant};
use crate::splitmix::SplitMix64;

/// How often each family is tried.
pub(super) const WEIGHTS: [(OperatorFamily, usize); 36] = [
    (OperatorFamily::Pointwise, 24),
    (OperatorFamily::Binary, 14),
    (OperatorFamily::Ternary, 2),
    (OperatorFamily::Masked, 2),
    (OperatorFamily::Where, 2),
    (OperatorFamily::Linear, 10),
    (OperatorFamily::Product, 5),
    (OperatorFamily::Bilinear, 1),
    (OperatorFamily::Convolution, 14),
    (OperatorFamily::TransposedConvolution, 5),
    (OperatorFamily::Pool, 8),
    (OperatorFamily::AdaptivePool, 3),
    (OperatorFamily::Pad, 2),
    (OperatorFamily::Resize, 3),
    (OperatorFamily::Shuffle, 2),
    (OperatorFamily::View, 3),
    (OperatorFamily::Halving, 2),
    (OperatorFamily::LearnedSlope, 1),
    (OperatorFamily::LocalResponse, 1),
    (OperatorFamily::Triangle, 1),
    (OperatorFamily::RowNormalisation, 5),
    (OperatorFamily::GroupNormalisation, 4),
    (OperatorFamily::ChannelNormalisation, 6),
    (OperatorFamily::Scan, 7),
    (OperatorFamily::Reduction, 7),
    (OperatorFamily::RankedReduction, 2),
    (OperatorFamily::Ranked, 2),
    (OperatorFamily::IndexReduction, 1),
    (OperatorFamily::Loss, 3),
    (OperatorFamily::ClassLoss, 1),
    (OperatorFamily::PairedReduction, 2),
    (OperatorFamily::Pick, 1),
    (OperatorFamily::Attention, 2),
    (OperatorFamily::Distance, 1),
    (OperatorFamily::Lookup, 1),
    (OperatorFamily::IndexAlong, 1),
];

/// A try to apply one seed to the chain's last value.
pub(super) struct OperatorAttempt<'a> {
    pub(super) seeds: &'a SeedCatalogue,
    pub(super) builder: &'a mut GraphBuilder,
    pub(super) rng: &'a mut SplitMix64,
    pub(super) seed: &'a OperatorSeed,
    pub(super) variant: &'a SeedVariant,
    pub(super) value: ValueId,
    /// Operators still wanted, this one among them.
    pub(super) left: usize,
}

impl<'a> OperatorAttempt<'a> {
    /// The value that comes out; `None` if this seed does not fit here.
    pub(super) fn apply_family(mut self) -> Option<ValueId> {
        if self.typed().dtype != Dtype::Float32 || self.shape().is_empty() {
            return None;
        }
        match self.seed.family {
            OperatorFamily::Pointwise => self.pointwise(),
            OperatorFamily::Binary => self.binary(),
            OperatorFamily::Ternary => self.ternary(),
            OperatorFamily::Masked => self.masked(),
            OperatorFamily::Where => self.choose(),
            OperatorFamily::LearnedSlope => self.learned_slope(),
            OperatorFamily::Linear => self.linear(),
            OperatorFamily::Bilinear => self.bilinear(),
            OperatorFamily::Product => self.product(),
            OperatorFamily::Attention => self.attention(),
            OperatorFamily::Distance => self.distance(),
            OperatorFamily::Lookup => self.lookup(),
            OperatorFamily::Convolution => self.convolution(),
            OperatorFamily::TransposedConvolution => self.transposed_convolution(),
            OperatorFamily::Pool => self.pool(),
            OperatorFamily::AdaptivePool => self.adaptive_pool(),
            OperatorFamily::Pad => self.pad(),
            OperatorFamily::Resize => self.resize(),
            OperatorFamily::LocalResponse => self.local_response(),
            OperatorFamily::Shuffle => self.shuffle(),
            OperatorFamily::View => self.view(),
            OperatorFamily::Triangle => self.triangle(),
            OperatorFamily::Pick => self.pick(),
            OperatorFamily::Halving => self.halving(),
            OperatorFamily::RowNormalisation => self.row_normalisation(),
            OperatorFamily::GroupNormalisation => self.group_normalisation(),
            OperatorFamily::ChannelNormalisation => self.channel_normalisation(),
            OperatorFamily::Scan => self.scan(),
            OperatorFamily::Reduction => self.reduction(),
            OperatorFamily::RankedReduction => self.ranked_reduction(),
            OperatorFamily::Ranked => self.ranked(),
            OperatorFamily::IndexReduction => self.index_reduction(),
            OperatorFamily::Loss => self.loss(),
            OperatorFamily::ClassLoss => self.class_loss(),
            OperatorFamily::PairedReduction => self.paired_reduction(),
            // Sorting indices shows nothing of ties, recurrence is not one operator, and of the others no rule is known.
            OperatorFamily::IndexAlong
            | OperatorFamily::Recurrent
            | OperatorFamily::Predicate
            | OperatorFamily::Total
            | OperatorFamily::Other => None,
        }
    }

    fn typed(&self) -> &GraphValueType {
        &self.builder.values[self.value]
    }

    fn shape(&self) -> &Shape {
        self.builder.shape(self.value)
    }

    fn rank(&self) -> usize {
        self.shape().len()
    }

    fn last_extent(&self) -> Extent {
        self.shape()[self.rank() - 1]
    }

    fn is_last(&self) -> bool {
        self.left == 1
    }

    fn call(&self, operands: &[ValueId], shape: Shape) -> OperatorCall<'a> {
        OperatorCall::new(self.seed, self.variant, operands, shape)
    }

    #[expect(
        clippy::unnecessary_wraps,
        reason = "rules that may not apply end with it"
    )]
    fn apply(&mut self, call: OperatorCall<'a>) -> Option<ValueId> {
        Some(self.builder.apply(call))
    }
}
