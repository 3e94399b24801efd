//! How each family of operators joins a chain: which values it takes, what its arguments are, what shape comes out.

mod compare;
mod matrix;
mod normalise;
mod pointwise;
mod reduce;
mod space;
mod view;

use warpsmith_schema::Dtype;

use super::draft::{Call, Draft, Id, Typed};
use super::luck::Luck;
use super::size::{Extent, Shape};
use crate::seeds::{Family, Seed, Seeds, Variant};

/// How often each family is tried.
pub(super) const WEIGHTS: [(Family, usize); 36] = [
    (Family::Pointwise, 24),
    (Family::Binary, 14),
    (Family::Ternary, 2),
    (Family::Masked, 2),
    (Family::Where, 2),
    (Family::Linear, 10),
    (Family::Product, 5),
    (Family::Bilinear, 1),
    (Family::Convolution, 14),
    (Family::TransposedConvolution, 5),
    (Family::Pool, 8),
    (Family::AdaptivePool, 3),
    (Family::Pad, 2),
    (Family::Resize, 3),
    (Family::Shuffle, 2),
    (Family::View, 3),
    (Family::Halving, 2),
    (Family::LearnedSlope, 1),
    (Family::LocalResponse, 1),
    (Family::Triangle, 1),
    (Family::RowNormalisation, 5),
    (Family::GroupNormalisation, 4),
    (Family::ChannelNormalisation, 6),
    (Family::Scan, 7),
    (Family::Reduction, 7),
    (Family::RankedReduction, 2),
    (Family::Ranked, 2),
    (Family::IndexReduction, 1),
    (Family::Loss, 3),
    (Family::ClassLoss, 1),
    (Family::PairedReduction, 2),
    (Family::Pick, 1),
    (Family::Attention, 2),
    (Family::Distance, 1),
    (Family::Lookup, 1),
    (Family::IndexAlong, 1),
];

/// A try to apply one seed to the chain's last value.
pub(super) struct Step<'a> {
    pub(super) seeds: &'a Seeds,
    pub(super) draft: &'a mut Draft,
    pub(super) luck: &'a mut Luck,
    pub(super) seed: &'a Seed,
    pub(super) variant: &'a Variant,
    pub(super) value: Id,
    /// Operators still wanted, this one among them.
    pub(super) left: usize,
}

impl<'a> Step<'a> {
    /// The value that comes out; `None` if this seed does not fit here.
    pub(super) fn take(mut self) -> Option<Id> {
        if self.typed().dtype != Dtype::Float32 || self.shape().is_empty() {
            return None;
        }
        match self.seed.family {
            Family::Pointwise => self.pointwise(),
            Family::Binary => self.binary(),
            Family::Ternary => self.ternary(),
            Family::Masked => self.masked(),
            Family::Where => self.choose(),
            Family::LearnedSlope => self.learned_slope(),
            Family::Linear => self.linear(),
            Family::Bilinear => self.bilinear(),
            Family::Product => self.product(),
            Family::Attention => self.attention(),
            Family::Distance => self.distance(),
            Family::Lookup => self.lookup(),
            Family::Convolution => self.convolution(),
            Family::TransposedConvolution => self.transposed_convolution(),
            Family::Pool => self.pool(),
            Family::AdaptivePool => self.adaptive_pool(),
            Family::Pad => self.pad(),
            Family::Resize => self.resize(),
            Family::LocalResponse => self.local_response(),
            Family::Shuffle => self.shuffle(),
            Family::View => self.view(),
            Family::Triangle => self.triangle(),
            Family::Pick => self.pick(),
            Family::Halving => self.halving(),
            Family::RowNormalisation => self.row_normalisation(),
            Family::GroupNormalisation => self.group_normalisation(),
            Family::ChannelNormalisation => self.channel_normalisation(),
            Family::Scan => self.scan(),
            Family::Reduction => self.reduction(),
            Family::RankedReduction => self.ranked_reduction(),
            Family::Ranked => self.ranked(),
            Family::IndexReduction => self.index_reduction(),
            Family::Loss => self.loss(),
            Family::ClassLoss => self.class_loss(),
            Family::PairedReduction => self.paired_reduction(),
            // Sorting indices shows nothing of ties, recurrence is not one operator, and of the others no rule is known.
            Family::IndexAlong
            | Family::Recurrent
            | Family::Predicate
            | Family::Total
            | Family::Other => None,
        }
    }

    fn typed(&self) -> &Typed {
        &self.draft.values[self.value]
    }

    fn shape(&self) -> &Shape {
        self.draft.shape(self.value)
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

    fn call(&self, operands: &[Id], shape: Shape) -> Call<'a> {
        Call::new(self.seed, self.variant, operands, shape)
    }

    #[expect(
        clippy::unnecessary_wraps,
        reason = "rules that may not apply end with it"
    )]
    fn apply(&mut self, call: Call<'a>) -> Option<Id> {
        Some(self.draft.apply(call))
    }
}
