"""Finds seeds: walks the installed torch and writes down every operator that works, with arguments it works with.

    python walk.py > ../data/torch.jsonl

Nothing is taken on faith. A class or function is a seed when a call of it on real tensors gave finite values, twice the
same. What kind of operator it is (its family) is found the same way where that can be seen from outside: an operator is
pointwise when changing one element of its input changes that element of its output and no other. Families whose
arguments follow from shapes (convolutions, pools) are named in a table below, and still tried.

A module counts only if PyTorch's functional form, called with the arguments written here, gives the same values.
"""

from __future__ import annotations

import inspect
import json
import math
import re
import sys
import warnings

import torch
import torch.nn as nn
import torch.nn.functional as F

warnings.filterwarnings("ignore")

# Values for arguments without a default, and others worth having, by their name or by operator and name.
VALUES = {
    "min": [-1.0], "max": [1.0], "exponent": [2, 3, 0.5], "threshold": [0.1], "value": [0.5], "n": [1], "p": [2],
    "negative_slope": [0.01, 0.2], "alpha": [1.0, 0.5], "lambd": [0.5], "beta": [1.0, 2.0], "approximate": ["none", "tanh"],
    "min_val": [-1.0, -2.0], "max_val": [1.0, 2.0], "dim": [-1], "q": [0.5], "other": [2.0], "k": [2], "shifts": [1],
    "dims": [[-1]], "num_classes": [8], "diagonal": [0], "offset": [0], "repeats": [2], "size": [4],
}
BY_OPERATOR = {
    ("threshold", "threshold"): [0.1, 0.0], ("threshold", "value"): [20.0, 0.0], ("softplus", "threshold"): [20.0],
    ("softplus", "beta"): [1.0, 2.0], ("renorm", "p"): [2], ("renorm", "maxnorm"): [1.0], ("renorm", "dim"): [0],
    ("mvlgamma", "p"): [2], ("clamp_max", "max"): [0.8], ("clamp_min", "min"): [-0.3], ("celu", "alpha"): [1.0, 0.5],
    ("elu", "alpha"): [1.0, 0.5], ("add", "alpha"): [1, 0.5], ("sub", "alpha"): [1, 0.5], ("rsub", "alpha"): [1],
    ("lerp", "weight"): [0.3, 0.7], ("addcmul", "value"): [1, 0.5], ("addcdiv", "value"): [1, 0.5],
    ("logit", "eps"): [1e-6], ("clamp", "min"): [-1.0, 0.0], ("clamp", "max"): [1.0], ("var", "correction"): [1], ("std", "correction"): [1], ("polygamma", "n"): [1, 2], ("round", "decimals"): [0], ("where", "other"): [0.0],
    ("flip", "dims"): [[-1], [1]], ("roll", "shifts"): [1, 3], ("nan_to_num", "nan"): [0.0],
}
# Random by design, not computing at all, writing in place, only of other layouts, or only of the machine that runs it.
LEAVE_OUT = re.compile(
    r"dropout|rrelu|r_re_lu|^as_tensor$|unique|nonzero|argwhere|searchsorted|vander|slice_scatter|gumbel|bernoulli|multinomial|poisson$|normal$|binomial|^rand|fractional|native_|cudnn|mkldnn|miopen|fbgemm"
    r"|quantize|q_|_copy$|sparse|^sym_|_like$|^empty|^zeros|^ones|^full|window$|^is_|^set_|^get_|^init_|lowrank|lobpcg"
    r"|^has_torch|^handle_|^detach|^clone$|^alias|^conj|^real$|^imag$|resolve_|^positive$|assert_|^align|boolean_dispatch"
    r"|fused_moving|_scaled|scaled_mm|grouped_mm|int_repr|hash_tensor|broadcast_shapes|^result_type|^can_cast|^promote|_except_dim"
    r"|^batch_norm_|stft|cond$|dist_|norm_except|embedding_renorm|alpha_dropout|^slice_inverse|_stats|vmap|compile|^fork|^wait"
    r"|^nextafter$|^angle$|^numel$|^sgn$|^fill$|^dequantize|^from|^load|^save|_ir_|parse_|^typename|^type$|^bincount|^histc|^histogram"
)
# Other names of the same.
ALIASES = {
    "absolute", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "clip", "concat", "concatenate",
    "divide", "fix", "ger", "greater", "greater_equal", "inverse", "less", "less_equal", "moveaxis", "multiply", "negative",
    "not_equal", "row_stack", "subtract", "swapaxes", "swapdims", "trapz", "true_divide", "upsample", "upsample_bilinear",
    "upsample_nearest", "NLLLoss2d", "SyncBatchNorm", "hardtanh_", "orgqr", "expit", "psi", "nuclear_norm", "frobenius_norm",
    "chain_matmul", "norm", "max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices",
    "adaptive_max_pool1d_with_indices", "adaptive_max_pool2d_with_indices", "adaptive_max_pool3d_with_indices",
    "unsafe_chunk", "unsafe_split", "grid_sampler", "grid_sampler_2d", "grid_sampler_3d", "affine_grid_generator",
    "Container", "Module", "Sequential", "ModuleList", "ModuleDict", "ParameterList", "ParameterDict", "DataParallel",
    "Identity", "RNNBase", "RNNCellBase", "i0", "multigammaln", "logit_", "log_softmax_", "softmax_", "zeta", "addmm_", "scalar_tensor",
}
N, C, L = 2, 8, 6
# Operators whose arguments follow from shapes: family, constructor or call arguments for the probe, shapes of the tensors.
SHAPED: dict[str, tuple[str, dict, list]] = {}


def shaped(names: str, family: str, arguments: dict, *shapes) -> None:
    for name in names.split():
        SHAPED[name] = (family, arguments, list(shapes))


for rank in (1, 2, 3):
    space = [L + 2] * rank
    x = [N, C, *space]
    shaped(f"Conv{rank}d", "convolution", {"in_channels": C, "out_channels": 16, "kernel_size": 3}, x)
    shaped(f"ConvTranspose{rank}d", "transposed_convolution", {"in_channels": C, "out_channels": 16, "kernel_size": 3}, x)
    shaped(f"conv{rank}d", "convolution", {}, x, [16, C] + [3] * rank, [16])
    shaped(f"conv_transpose{rank}d", "transposed_convolution", {}, x, [C, 16] + [3] * rank, [16])
    shaped(f"MaxPool{rank}d AvgPool{rank}d max_pool{rank}d avg_pool{rank}d", "pool", {"kernel_size": 2}, x)
    shaped(f"LPPool{rank}d lp_pool{rank}d", "pool", {"norm_type": 2.0, "kernel_size": 2}, x)
    shaped(f"AdaptiveAvgPool{rank}d AdaptiveMaxPool{rank}d adaptive_avg_pool{rank}d adaptive_max_pool{rank}d", "adaptive_pool",
           {"output_size": [2] * rank}, x)
    shaped(f"ZeroPad{rank}d ReflectionPad{rank}d ReplicationPad{rank}d CircularPad{rank}d", "pad", {"padding": [1, 1] * rank}, x)
    shaped(f"ConstantPad{rank}d", "pad", {"padding": [1, 1] * rank, "value": 0.5}, x)
    shaped(f"BatchNorm{rank}d", "channel_normalisation", {"num_features": C}, x)
    shaped(f"InstanceNorm{rank}d", "channel_normalisation", {"num_features": C, "affine": True}, x)
shaped("pad", "pad", {"pad": [1, 1]}, [N, C, L])
shaped("LayerNorm RMSNorm", "row_normalisation", {"normalized_shape": [L]}, [N, C, L])
shaped("layer_norm", "row_normalisation", {"normalized_shape": [L]}, [N, C, L], [L], [L])
shaped("rms_norm", "row_normalisation", {"normalized_shape": [L]}, [N, C, L], [L])
shaped("GroupNorm", "group_normalisation", {"num_groups": 4, "num_channels": C}, [N, C, L, L])
shaped("group_norm", "group_normalisation", {"num_groups": 4}, [N, C, L, L], [C], [C])
shaped("batch_norm", "channel_normalisation", {}, [N, C, L], [C], ["u", C], [C], [C])
shaped("instance_norm", "channel_normalisation", {}, [N, C, L])
shaped("LocalResponseNorm local_response_norm", "local_response", {"size": 3}, [N, C, L, L])
shaped("CrossMapLRN2d", "other", {"size": 3}, [N, C, L, L])
shaped("Linear", "linear", {"in_features": L, "out_features": 16}, [N, C, L])
shaped("linear", "linear", {}, [N, C, L], [16, L], [16])
shaped("Bilinear", "bilinear", {"in1_features": L, "in2_features": L, "out_features": 5}, [N, L], [N, L])
shaped("bilinear", "bilinear", {}, [N, L], [N, L], [5, L, L], [5])
shaped("matmul", "product", {}, [N, C, L], [L, 16])
shaped("mm", "product", {}, [N, L], [L, 16])
shaped("bmm", "product", {}, [N, C, L], [N, L, 16])
shaped("addmm", "product", {}, [16], [N, L], [L, 16])
shaped("baddbmm", "product", {}, [N, C, 16], [N, C, L], [N, L, 16])
shaped("mv", "product", {}, [N, L], [L])
shaped("inner", "product", {}, [N, L], [16, L])
shaped("addbmm", "other", {}, [C, 16], [N, C, L], [N, L, 16])
shaped("addmv", "other", {}, [N], [N, L], [L])
shaped("addr", "other", {}, [N, L], [N], [L])
shaped("outer", "other", {}, [N], [L])
shaped("dot vdot", "other", {}, [L], [L])
shaped("kron", "other", {}, [N, L], [N, C])
shaped("tensordot", "other", {"dims": 1}, [N, L], [L, C])
shaped("multi_dot", "other", {}, [[N, L], [L, C]])
shaped("block_diag cartesian_prod", "other", {}, [[L], [C]])
shaped("cross", "other", {"dim": -1}, [N, 3], [N, 3])
shaped("PReLU", "learned_slope", {"num_parameters": C}, [N, C, L])
shaped("prelu", "learned_slope", {}, [N, C, L], [C])
shaped("Upsample", "resize", {"scale_factor": 2.0}, [N, C, L, L])
shaped("UpsamplingNearest2d UpsamplingBilinear2d", "resize", {"scale_factor": 2.0}, [N, C, L, L])
shaped("interpolate", "resize", {"scale_factor": 2.0}, [N, C, L, L])
shaped("PixelShuffle pixel_shuffle", "shuffle", {"upscale_factor": 2}, [N, C, L, L])
shaped("PixelUnshuffle pixel_unshuffle", "shuffle", {"downscale_factor": 2}, [N, C, L, L])
shaped("ChannelShuffle channel_shuffle", "shuffle", {"groups": 2}, [N, C, L, L])
shaped("Fold fold", "other", {"output_size": [4, 4], "kernel_size": [2, 2]}, [N, C, 9])
shaped("Unfold unfold", "other", {"kernel_size": [2, 2]}, [N, C, L, L])
shaped("Flatten flatten", "view", {"start_dim": 1}, [N, C, L])
shaped("Unflatten unflatten", "view", {"dim": 1, "unflattened_size": [2, 4]}, [N, C, L])
shaped("transpose", "view", {"dim0": 1, "dim1": 2}, [N, C, L])
shaped("permute", "view", {"dims": [0, 2, 1]}, [N, C, L])
shaped("movedim", "view", {"source": 1, "destination": 2}, [N, C, L])
shaped("t", "view", {}, [N, C])
shaped("unsqueeze", "view", {"dim": 1}, [N, C])
shaped("squeeze", "view", {"dim": 1}, [N, 1, C])
shaped("reshape", "view", {"shape": [N, C * L]}, [N, C, L])
shaped("narrow", "view", {"dim": 1, "start": 0, "length": 4}, [N, C, L])
shaped("select", "view", {"dim": 1, "index": 0}, [N, C, L])
shaped("chunk", "other", {"chunks": 2, "dim": 1}, [N, C, L])
shaped("split", "other", {"split_size_or_sections": 4, "dim": 1}, [N, C, L])
shaped("tensor_split", "other", {"indices_or_sections": 2, "dim": 1}, [N, C, L])
shaped("hsplit vsplit", "other", {"indices_or_sections": 2}, [N, C, L])
shaped("dsplit", "other", {"indices_or_sections": 2}, [N, C, L])
shaped("unbind", "other", {"dim": 1}, [N, C, L])
shaped("tile", "other", {"dims": [1, 2]}, [N, C])
shaped("broadcast_to", "other", {"size": [N, C, L]}, [C, L])
shaped("repeat_interleave", "other", {"repeats": 2, "dim": 1}, [N, C])
shaped("rot90", "other", {"k": 1, "dims": [0, 1]}, [N, C])
shaped("fliplr flipud ravel", "other", {}, [N, C])
shaped("cat stack hstack vstack dstack column_stack", "other", {}, [[N, C], [N, C]])
shaped("glu GLU", "halving", {"dim": -1}, [N, C, L])
shaped("Embedding", "lookup", {"num_embeddings": 32, "embedding_dim": L}, ["i", 32, N, C])
shaped("embedding", "lookup", {}, ["i", 32, N, C], [32, L])
shaped("EmbeddingBag", "other", {"num_embeddings": 32, "embedding_dim": L}, ["i", 32, N, C])
shaped("gather take_along_dim", "pick", {"dim": 1}, [N, C], ["i", C, N, 3])
shaped("index_select", "pick", {"dim": 1}, [N, C], ["i", C, 3])
shaped("take", "other", {}, [N, C], ["i", C, 3])
shaped("scatter_add index_add", "other", {"dim": 0}, [N, C], ["i", N, N], [N, C])
shaped("masked_fill", "masked", {"value": 0.0}, [N, C], ["b", N, C])
shaped("where", "where", {}, ["b", N, C], [N, C], [N, C])
shaped("topk", "ranked", {"k": 3, "dim": -1}, [N, C])
shaped("kthvalue", "other", {"k": 3, "dim": -1}, [N, C])
shaped("sort", "ranked", {"dim": -1}, [N, C])
shaped("argsort", "index_along", {"dim": -1}, [N, C])
shaped("msort", "other", {}, [N, C])
shaped("argmax argmin", "index_reduction", {"dim": -1}, [N, C])
shaped("cummax cummin", "ranked", {"dim": -1}, [N, C])
shaped("median nanmedian mode", "other", {"dim": -1}, [N, C])
shaped("max min", "ranked_reduction", {"dim": -1}, [N, C])
shaped("aminmax", "other", {"dim": -1}, [N, C])
shaped("var_mean std_mean", "other", {"dim": -1}, [N, C])
shaped("renorm", "other", {"p": 2, "dim": 0, "maxnorm": 1.0}, [N, C])
shaped("vector_norm", "other", {"dim": -1}, [N, C])
shaped("matrix_norm", "other", {}, [N, C])
shaped("tril triu", "triangle", {}, [N, C, C])
shaped("trace", "other", {}, [C, C])
shaped("diagonal", "other", {"dim1": 1, "dim2": 2}, [N, C, C])
shaped("diag diag_embed diagflat", "other", {}, [C])
shaped("cov corrcoef", "other", {}, [N, C])
shaped("cdist", "distance", {}, [N, C, L], [N, C, L])
shaped("pdist", "other", {}, [C, L])
shaped("dist", "other", {}, [N, C], [N, C])
shaped("one_hot", "other", {"num_classes": 8}, ["i", 8, N])
shaped("scaled_dot_product_attention", "attention", {}, [N, 2, C, L], [N, 2, C, L], [N, 2, C, L])
shaped("grid_sample", "other", {"align_corners": False}, [N, C, L, L], [N, L, L, 2])
shaped("affine_grid", "other", {"size": [N, C, L, L], "align_corners": False}, [N, 2, 3])
shaped("conv_tbc", "other", {}, [L, N, C], [3, C, 16], [16])
shaped("max_unpool1d max_unpool2d max_unpool3d MaxUnpool1d MaxUnpool2d MaxUnpool3d", "skip", {})
shaped("einsum", "other", {"equation": "bij,bjk->bik"}, [[N, C, L], [N, L, C]])
shaped("RNN GRU LSTM", "recurrent", {"input_size": L, "hidden_size": 16, "batch_first": True}, [N, C, L])
shaped("RNNCell GRUCell", "other", {"input_size": L, "hidden_size": 16}, [N, L], [N, 16])
shaped("LSTMCell", "other", {"input_size": L, "hidden_size": 16}, [N, L])
shaped("MultiheadAttention", "other", {"embed_dim": 8, "num_heads": 2, "batch_first": True}, [N, L, 8], [N, L, 8], [N, L, 8])
shaped("TransformerEncoderLayer", "other", {"d_model": 8, "nhead": 2, "dim_feedforward": 16, "batch_first": True}, [N, L, 8])
shaped("TransformerDecoderLayer", "other", {"d_model": 8, "nhead": 2, "dim_feedforward": 16, "batch_first": True}, [N, L, 8], [N, L, 8])
shaped("Transformer", "other", {"d_model": 8, "nhead": 2, "num_encoder_layers": 1, "num_decoder_layers": 1, "dim_feedforward": 16,
                                "batch_first": True}, [N, L, 8], [N, L, 8])
shaped("Softmax2d", "other", {}, [N, C, L, L])
# Losses: shapes and kinds of what is compared.
for loss in "mse_loss l1_loss smooth_l1_loss huber_loss MSELoss L1Loss SmoothL1Loss HuberLoss".split():
    shaped(loss, "loss", {}, [N, C], [N, C])
for loss in "kl_div KLDivLoss".split():
    shaped(loss, "loss", {"log_target": True}, ["l", N, C], ["l", N, C])
for loss in "binary_cross_entropy BCELoss".split():
    shaped(loss, "loss", {}, ["u", N, C], ["u", N, C])
for loss in "binary_cross_entropy_with_logits BCEWithLogitsLoss".split():
    shaped(loss, "loss", {}, [N, C], ["u", N, C])
for loss in "poisson_nll_loss PoissonNLLLoss".split():
    shaped(loss, "loss", {}, [N, C], ["u", N, C])
for loss in "soft_margin_loss SoftMarginLoss hinge_embedding_loss HingeEmbeddingLoss".split():
    shaped(loss, "loss", {}, [N, C], ["s", N, C])
for loss in "gaussian_nll_loss GaussianNLLLoss".split():
    shaped(loss, "other", {}, [N, C], [N, C], ["u", N, C])
for loss in "cross_entropy CrossEntropyLoss multi_margin_loss MultiMarginLoss".split():
    shaped(loss, "class_loss", {}, [N, C], ["i", C, N])
for loss in "nll_loss NLLLoss".split():
    shaped(loss, "class_loss", {}, ["l", N, C], ["i", C, N])
for loss in "multilabel_soft_margin_loss MultiLabelSoftMarginLoss".split():
    shaped(loss, "loss", {}, [N, C], ["t", N, C])
for loss in "multilabel_margin_loss MultiLabelMarginLoss".split():
    shaped(loss, "other", {}, [N, C], ["i", C, N, C])
for loss in "margin_ranking_loss MarginRankingLoss".split():
    shaped(loss, "other", {}, [N, C], [N, C], ["s", N, C])
for loss in "cosine_embedding_loss CosineEmbeddingLoss".split():
    shaped(loss, "other", {}, [N, C], [N, C], ["s", N])
for loss in "triplet_margin_loss TripletMarginLoss triplet_margin_with_distance_loss TripletMarginWithDistanceLoss".split():
    shaped(loss, "other", {}, [N, C], [N, C], [N, C])
for pair in "cosine_similarity CosineSimilarity pairwise_distance PairwiseDistance".split():
    shaped(pair, "paired_reduction", {}, [N, C], [N, C])
for skipped in "ctc_loss CTCLoss AdaptiveLogSoftmaxWithLoss embedding_bag multi_head_attention_forward TransformerEncoder TransformerDecoder".split():
    shaped(skipped, "skip", {})
for square in "cholesky inv det logdet slogdet matrix_exp pinv svdvals eigvalsh".split():
    shaped(square, "other", {}, ["p", C, C])
shaped("solve", "other", {}, ["p", C, C], [C, N])
shaped("matrix_power", "other", {"n": 2}, [C, C])
for signal in "rfft irfft fft ifft fft2 ifft2 rfft2 irfft2 fftn ifftn rfftn irfftn hfft ihfft fftshift ifftshift".split():
    shaped(f"fft.{signal}", "skip", {})

# Modules whose functional form is not their name in another spelling.
FUNCTIONAL = {
    "LogSigmoid": "logsigmoid", "KLDivLoss": "kl_div", "BCELoss": "binary_cross_entropy", "CrossEntropyLoss": "cross_entropy",
    "BCEWithLogitsLoss": "binary_cross_entropy_with_logits", "LocalResponseNorm": "local_response_norm", "Upsample": "interpolate",
    "UpsamplingNearest2d": "interpolate", "UpsamplingBilinear2d": "interpolate", "RMSNorm": "rms_norm", "GroupNorm": "group_norm",
    "LayerNorm": "layer_norm", "Flatten": "flatten", "Unflatten": "unflatten", "Softmax2d": "softmax", "NLLLoss": "nll_loss",
    "PoissonNLLLoss": "poisson_nll_loss", "GaussianNLLLoss": "gaussian_nll_loss", "HuberLoss": "huber_loss",
    "SmoothL1Loss": "smooth_l1_loss", "L1Loss": "l1_loss", "MSELoss": "mse_loss", "CosineSimilarity": "cosine_similarity",
    "PairwiseDistance": "pairwise_distance", "MultiLabelMarginLoss": "multilabel_margin_loss", "PReLU": "prelu",
    "MultiLabelSoftMarginLoss": "multilabel_soft_margin_loss", "MultiMarginLoss": "multi_margin_loss",
    "LeakyReLU": "leaky_relu", "RNN": "rnn", "GRU": "gru", "LSTM": "lstm",
}
for rank in (1, 2, 3):
    FUNCTIONAL |= {
        f"Conv{rank}d": f"conv{rank}d", f"ConvTranspose{rank}d": f"conv_transpose{rank}d", f"MaxPool{rank}d": f"max_pool{rank}d",
        f"AvgPool{rank}d": f"avg_pool{rank}d", f"LPPool{rank}d": f"lp_pool{rank}d", f"BatchNorm{rank}d": "batch_norm",
        f"AdaptiveAvgPool{rank}d": f"adaptive_avg_pool{rank}d", f"AdaptiveMaxPool{rank}d": f"adaptive_max_pool{rank}d",
        f"InstanceNorm{rank}d": "instance_norm", f"ZeroPad{rank}d": "pad", f"ConstantPad{rank}d": "pad",
        f"ReflectionPad{rank}d": "pad", f"ReplicationPad{rank}d": "pad", f"CircularPad{rank}d": "pad",
    }
PAD_MODES = {"Zero": ("constant", 0.0), "Constant": ("constant", 0.5), "Reflection": ("reflect", None),
             "Replication": ("replicate", None), "Circular": ("circular", None)}


def draw(kind) -> torch.Tensor | list[torch.Tensor]:
    """A tensor of a shape; the letter before it says what stands in it."""
    if kind and isinstance(kind[0], list):
        return [draw(one) for one in kind]
    letter, shape = (kind[0], kind[1:]) if kind and isinstance(kind[0], str) else ("r", kind)
    match letter:
        case "r":
            return torch.randn(shape)
        case "i":
            return torch.randint(0, shape[0], shape[1:])
        case "b":
            return torch.rand(shape) > 0.5
        case "u":
            return torch.rand(shape) * 0.9 + 0.05
        case "s":
            return torch.where(torch.rand(shape) > 0.5, 1.0, -1.0)
        case "t":
            return (torch.rand(shape) > 0.5).float()
        case "l":
            return torch.log_softmax(torch.randn(shape), -1)
        case "p":
            half = torch.randn(shape)
            return half @ half.mT + shape[-1] * torch.eye(shape[-1])
    raise ValueError(letter)


DOMAINS = {"real": (-4.0, 4.0), "non_negative": (0.0, 4.0), "positive": (0.05, 4.0), "symmetric": (-0.95, 0.95), "unit": (0.05, 0.95)}


def flat(result) -> list:
    return [tensor for one in result for tensor in flat(one)] if isinstance(result, (tuple, list)) else [result]


def finite(result) -> bool:
    tensors = flat(result)
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor) or tensor.is_complex() or tensor.numel() == 0:
            return False
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            return False
    return bool(tensors)


def same(one, other) -> bool:
    ones, others = flat(one), flat(other)
    return len(ones) == len(others) and all(
        a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a.double(), b.double(), rtol=1e-5, atol=1e-6)
        for a, b in zip(ones, others))


class Signature:
    """Names of a function's tensors, in order, and of its other arguments with their defaults."""

    def __init__(self, tensors: list[tuple[str, bool]], others: list[tuple[str, object, bool]]):
        self.tensors = tensors
        self.others = others

    @property
    def required(self) -> list[str]:
        return [name for name, needed in self.tensors if needed]


def is_tensor(annotation: str) -> bool:
    return annotation.replace("torch.", "") in ("Tensor", "Optional[Tensor]", "Tensor | None", "Tensor?", "Tensor[]") or annotation == "<class 'torch.Tensor'>"


# Operators that the library below calls otherwise.
ATEN = {"logsigmoid": "log_sigmoid"}


def signatures(name: str, function) -> list[Signature]:
    """The Python signature where there is one, else those of the operator's overloads."""
    try:
        found = inspect.signature(function)
        tensors, others = [], []
        for parameter in found.parameters.values():
            if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                continue
            annotation = parameter.annotation if isinstance(parameter.annotation, str) else inspect.formatannotation(parameter.annotation)
            needed = parameter.default is parameter.empty
            if parameter.name == "out":
                continue
            if is_tensor(annotation.replace("torch.Tensor", "Tensor")) or parameter.name in ("input", "target"):
                tensors.append((parameter.name, needed))
            elif parameter.name not in ("size_average", "reduce", "_stacklevel"):
                others.append((parameter.name, None if needed else parameter.default, needed))
        if tensors:
            return [Signature(tensors, others)]
    except (TypeError, ValueError):
        pass
    result = []
    for prefix in ("aten::", "aten::special_", "aten::linalg_"):
        for schema in torch._C._jit_get_schemas_for_operator(prefix + ATEN.get(name, name)):
            if any(a.is_out for a in schema.arguments) or "Dimname" in str(schema):
                continue
            tensors, others = [], []
            for argument in schema.arguments:
                kind = str(argument.type)
                argument_name = "input" if argument.name == "self" else argument.name
                if kind in ("Tensor", "Optional[Tensor]", "List[Tensor]"):
                    tensors.append((argument_name, not argument.has_default_value() and kind != "Optional[Tensor]"))
                else:
                    default = argument.default_value if argument.has_default_value() else None
                    others.append((argument_name, default, not argument.has_default_value()))
            result.append(Signature(tensors, others))
    # The overload that can do more first: a dimension, a correction.
    return sorted(result, key=lambda signature: -sum(name in ("dim", "correction") for name, _, _ in signature.others))


def plain(value):
    """A value as JSON can hold it."""
    if isinstance(value, (torch.dtype, torch.layout, torch.device)):
        raise TypeError("not plain")
    if isinstance(value, float) and not math.isfinite(value):
        raise TypeError("not plain")
    if isinstance(value, (tuple, list, torch.Size)):
        return [plain(one) for one in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError("not plain")


def candidates(name: str, argument: str, default, needed: bool) -> list:
    known = BY_OPERATOR.get((name, argument)) or (VALUES.get(argument) if needed or argument in ("negative_slope", "approximate") else None)
    if known:
        return known
    return [] if needed else [default]


def variants(name: str, signature: Signature) -> list[dict]:
    """Arguments to try: the first choice of each, and every other choice of one at a time."""
    choices = {argument: candidates(name, argument, default, needed) for argument, default, needed in signature.others}
    if any(not values for values in choices.values()):
        return []
    first = {argument: values[0] for argument, values in choices.items()}
    result = [first]
    for argument, values in choices.items():
        result += [first | {argument: value} for value in values[1:]]
    return result


def image(tensor: torch.Tensor) -> str:
    low, high = float(tensor.min()), float(tensor.max())
    for domain in ("unit", "positive", "non_negative", "symmetric"):
        least, most = {"unit": (1e-7, 1.0), "positive": (1e-7, math.inf), "non_negative": (0.0, math.inf), "symmetric": (-1.0, 1.0)}[domain]
        if least <= low and high <= most:
            return domain
    return "real"


def grids(low: float, high: float, count: int) -> list[torch.Tensor]:
    grid = torch.cat([torch.linspace(low, high, 4000), torch.zeros(1) if low <= 0.0 else torch.full((1,), low)])
    return [grid] if count == 1 else [grid[torch.randperm(4001)] for _ in range(count)]


def pointwise(call, count: int) -> dict | None:
    """Domain and image of a pointwise operator of `count` tensors; None if it is none."""
    for domain, (low, high) in DOMAINS.items():
        try:
            for shape in ((5,), (3, 4), (2, 4, 5), (2, 4, 3, 3)):
                inputs = [torch.rand(shape) * (high - low) + low for _ in range(count)]
                result = call(*inputs)
                if not isinstance(result, torch.Tensor) or result.shape != inputs[0].shape or not finite(result):
                    raise ValueError("not pointwise here")
                changed = [tensor.clone() for tensor in inputs]
                for tensor in changed:
                    tensor.view(-1)[1] = tensor.view(-1)[1] * 0.5 + 0.25 * (low + high) / 2 + 0.01
                other = call(*changed)
                differing = (other != result).view(-1).nonzero().view(-1).tolist()
                if differing not in ([], [1]):
                    raise ValueError("not local")
            result = call(*grids(low, high, count))
            if not finite(result):
                continue
            # Wider for the image: what is bounded near zero need not be bounded.
            wider = call(*grids(8 * low if low < 0 else low, 8 * high, count)) if domain in ("real", "positive", "non_negative") else result
            result = wider if finite(wider) else result
            if result.dtype == torch.bool or not result.is_floating_point():
                return {"domain": domain, "image": "real", "dtype": str(result.dtype).removeprefix("torch.")}
            if float(result.max() - result.min()) < 1e-6:
                return None
            return {"domain": domain, "image": image(result), "dtype": "float32"}
        except Exception:
            continue
    return None


def attempt(call, inputs) -> list | None:
    """What the call gives, if it is finite and twice the same."""
    try:
        one, other = call(*inputs), call(*inputs)
    except Exception:
        return None
    if not finite(one) or not same(one, other):
        return None
    return one


def described(tensor) -> dict | list:
    if isinstance(tensor, (tuple, list)):
        return [described(one) for one in tensor]
    return {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}


def functional_of(op: str):
    for place in (F, torch, torch.special, torch.linalg):
        if hasattr(place, op):
            return getattr(place, op)
    return None


def along(call_with_dim) -> str | None:
    """`scan` where the result has the shape of the input, `reduction` where the dimension is gone, `total` where all are."""
    x = torch.rand(2, 4, 5) + 0.1
    result = attempt(lambda value: call_with_dim(value, 1), [x])
    if not isinstance(result, torch.Tensor) or not result.is_floating_point():
        return None
    if result.shape == x.shape:
        return "scan"
    return "reduction" if list(result.shape) == [2, 5] else None


def seeds_of_function(path: str, name: str, function, form: str) -> list[dict]:
    if name in SHAPED:
        family, given, shapes = SHAPED[name]
        if family == "skip":
            return []
        inputs = [draw(shape) for shape in shapes]
        for signature in signatures(name, function):
            names = [tensor for tensor, _ in signature.tensors]
            if len(names) < len(inputs) or not set(given) <= {other for other, _, _ in signature.others}:
                continue
            if any(needed and other not in given for other, _, needed in signature.others):
                continue
            if len(signature.required) > len(inputs):
                continue
            arguments = {other: default for other, default, _ in signature.others} | given
            bound = names[:len(inputs)]
            call = (lambda *tensors: function(*tensors, **given)) if form == "method" else (lambda *tensors: function(**dict(zip(bound, tensors)), **given))
            result = attempt(call, inputs)
            if result is None:
                continue
            try:
                arguments = {key: plain(value) for key, value in arguments.items()}
            except TypeError:
                continue
            return [{"path": path, "op": name, "form": form, "family": family, "tensors": names, "given": given, "arguments": arguments,
                     "inputs": [described(tensor) for tensor in inputs], "outputs": described(flat(result))}]
        return []
    found = []
    for signature in signatures(name, function):
        count = len(signature.required)
        if not 1 <= count <= 3:
            continue
        names = signature.required
        for arguments in variants(name, signature):
            try:
                arguments = {key: plain(value) for key, value in arguments.items()}
            except TypeError:
                continue
            given = {key: value for (key, default, needed), value in ((other, arguments[other[0]]) for other in signature.others) if needed or value != default}
            def call(*tensors, extra=given):
                if form == "method":
                    return function(*tensors, **extra)
                return function(**dict(zip(names, tensors)), **extra)
            seed = {"path": path, "op": name, "form": form, "tensors": [tensor for tensor, _ in signature.tensors], "given": given, "arguments": arguments}
            facts = pointwise(call, count)
            if facts:
                # The second operand may be smaller: broadcasting is tried, not assumed.
                if count > 1 and attempt(call, [torch.rand(2, 4, 5) * 0.5 + 0.2] + [torch.rand(5) * 0.5 + 0.2] * (count - 1)) is None:
                    family = "other"
                else:
                    family = {1: "pointwise", 2: "binary", 3: "ternary"}[count]
                if facts["dtype"] != "float32":
                    family = "predicate" if facts["dtype"] == "bool" else "other"
                if family in ("binary", "predicate") and count == 2 and form != "module":
                    seed["scalar"] = attempt(lambda value: call(value, 0.5), [torch.rand(3, 4) + 0.1]) is not None
                shape = [3, 4]
                found.append(seed | facts | {"family": family, "inputs": [{"shape": shape, "dtype": "float32"}] * count, "outputs": [{"shape": shape, "dtype": facts["dtype"]}]})
                continue
            if count == 1 and "dim" in arguments:
                extra = {key: value for key, value in given.items() if key != "dim"}
                kind = along(lambda value, dim: function(value, dim=dim, **extra))
                if kind:
                    result = function(torch.rand(2, 4, 5), dim=1, **extra)
                    found.append(seed | {"family": kind, "inputs": [{"shape": [2, 4, 5], "dtype": "float32"}], "outputs": described([result]), "image": image(result)})
                    continue
            if count == 1:
                x = torch.rand(2, 4, 5) + 0.1
                result = attempt(call, [x])
                if isinstance(result, torch.Tensor):
                    total = result.dim() == 0 and result.is_floating_point()
                    found.append(seed | {"family": "total" if total else "other", "inputs": [described(x)], "outputs": described([result])})
        if found:
            break
    return found


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def seed_of_module(path: str, name: str, cls) -> list[dict]:
    family, constructor, shapes = SHAPED.get(name, (None, {}, []))
    if family == "skip":
        return []
    op = FUNCTIONAL.get(name) or next((guess for guess in (name.lower(), snake(name)) if functional_of(guess)), snake(name))
    functional = functional_of(op)
    parameters = inspect.signature(cls).parameters
    choices = [(key, p.default if p.default is not p.empty else None, p.default is p.empty)
               for key, p in parameters.items() if key not in ("device", "dtype", "inplace", "size_average", "reduce") and p.kind is p.POSITIONAL_OR_KEYWORD]
    if family is None:
        options = variants(op, Signature([], choices))
    else:
        options = [constructor]
    found = []
    for option in options:
        defaults = {key: default for key, default, _ in choices}
        given = option if family else {key: value for key, value in option.items() if value != defaults[key]}
        torch.manual_seed(1)
        try:
            module = cls(**given).eval()
        except Exception:
            continue
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.uniform_(-0.5, 0.5)
        state = {key: list(value.shape) for key, value in module.state_dict().items() if value.is_floating_point()}
        seed = {"path": path, "op": op, "form": "module", "given": given, "state": state}
        facts = pointwise(module, 1) if family is None else None
        inputs = [draw(shape) for shape in shapes] or [torch.randn(2, 4, 5)]
        if facts:
            seed |= facts | {"family": "pointwise"}
        elif family is None:
            kind = along(lambda value, dim: cls(**{key: value_ for key, value_ in given.items() if key != "dim"}, dim=dim)(value)) if "dim" in parameters else None
            seed["family"] = kind or "other"
        else:
            seed["family"] = family
        result = attempt(module, inputs)
        if result is None and facts is None:
            continue
        if facts and result is None:
            inputs = [torch.rand(2, 4, 5) * 0.5 + 0.2]
            result = attempt(module, inputs)
        outputs = described(flat(result))
        # The functional form with the same arguments must give the same.
        known = signatures(op, functional) if functional else []
        told = None
        for signature in known:
            names = [tensor for tensor, _ in signature.tensors]
            arguments = {}
            for key, default, _ in signature.others:
                if key in given:
                    arguments[key] = given[key]
                elif key == "use_input_stats":
                    arguments[key] = True
                elif key == "pad" and "Pad" in name:
                    arguments[key] = given["padding"]
                elif key in ("mode", "value") and "Pad" in name:
                    arguments[key] = PAD_MODES[name[:name.index("Pad")]][0 if key == "mode" else 1]
                elif isinstance(getattr(module, key, None), (bool, int, float, str, tuple)):
                    arguments[key] = getattr(module, key)
                elif key in defaults and not callable(defaults[key]):
                    arguments[key] = defaults[key]
                else:
                    arguments[key] = default
            if op == "softmax" and name == "Softmax2d":
                arguments["dim"] = 1
            full = dict(module.named_parameters()) | dict(module.named_buffers())
            tensors, flowing = {}, list(inputs)
            for tensor in names:
                if tensor in full:
                    tensors[tensor] = full[tensor]
                elif flowing and tensor not in ("weight", "bias", "running_mean", "running_var", "pos_weight"):
                    tensors[tensor] = flowing.pop(0)
            try:
                passed = {key: value for key, value in arguments.items() if not key.startswith("_")}
                if op in ("softmax", "log_softmax", "softmin"):
                    passed.pop("_stacklevel", None)
                direct = functional(**tensors, **passed)
                arguments = {key: plain(value) for key, value in passed.items()}
            except Exception:
                continue
            with torch.no_grad():
                if same(direct if not isinstance(direct, tuple) or isinstance(result, tuple) else direct[0], result):
                    told = (names, arguments)
                    break
        if told:
            seed |= {"tensors": told[0], "arguments": told[1]}
        elif seed["family"] not in ("recurrent",):
            seed |= {"tensors": [], "arguments": {}, "family": "other"}
        else:
            seed |= {"tensors": [], "arguments": {}}
        found.append(seed | {"inputs": [described(tensor) for tensor in inputs], "outputs": outputs})
    return found


def walk() -> list[dict]:
    torch.manual_seed(0)
    seeds = []
    for name in sorted(dir(nn)):
        cls = getattr(nn, name)
        if inspect.isclass(cls) and issubclass(cls, nn.Module) and name not in ALIASES and not name.startswith("Lazy") and not LEAVE_OUT.search(snake(name)):
            seeds += seed_of_module(f"torch.nn.{name}", name, cls)
    functional = set()
    for prefix, place in (("torch.nn.functional", F), ("torch", torch), ("torch.special", torch.special), ("torch.linalg", torch.linalg)):
        for name in sorted(dir(place)):
            function = getattr(place, name)
            if not callable(function) or inspect.isclass(function) or name.startswith("_") or name.endswith("_") or not name.islower():
                continue
            if name in ALIASES or LEAVE_OUT.search(name) or f"{prefix}.{name}" in ("torch.linalg.norm",):
                continue
            if prefix == "torch" and (name in functional):
                continue
            try:
                found = seeds_of_function(f"{prefix}.{name}", name, function, "function")
            except Exception as error:
                print(f"{prefix}.{name}: {error}", file=sys.stderr)
                continue
            if prefix in ("torch.special", "torch.linalg") and any(seed["op"] == name for seed in seeds):
                continue
            functional.add(name)
            seeds += found
            # The same as a tensor's method, where a tensor has it.
            method = getattr(torch.Tensor, name, None)
            if method and prefix == "torch" and found and found[0]["family"] != "other":
                known = [seed for seed in found]
                for seed in known:
                    try:
                        tensors = [torch.rand(one["shape"]) * 0.5 + 0.2 if one["dtype"] == "float32" else draw(["i", 2, *one["shape"]]) if one["dtype"] == "int64" else draw(["b", *one["shape"]]) for one in seed["inputs"]]
                        place_of_self = 0
                        if name == "where":
                            continue
                        extra = dict(seed["given"])
                        if "dim" in seed["arguments"] and "dim" not in extra and seed["family"] in ("scan", "reduction"):
                            extra["dim"] = 1
                        result = getattr(tensors[place_of_self], name)(*tensors[1:], **extra)
                        if finite(result):
                            seeds.append(seed | {"path": f"torch.Tensor.{name}", "form": "method"})
                    except Exception:
                        continue
    return seeds


if __name__ == "__main__":
    with torch.no_grad():
        lines = walk()
    # One line a seed: variants of the same path stand together in it.
    grouped: dict[str, dict] = {}
    for seed in lines:
        entry = grouped.setdefault(seed["path"], {key: seed[key] for key in ("path", "op", "form", "family", "tensors")} | {"state": seed.get("state", {}), "scalar": seed.get("scalar", False), "variants": []})
        if entry["family"] != seed["family"]:
            continue
        entry["variants"].append({key: seed[key] for key in ("given", "arguments", "domain", "image", "inputs", "outputs") if key in seed})
    for entry in grouped.values():
        print(json.dumps(entry))
    families: dict[str, int] = {}
    for entry in grouped.values():
        families[entry["family"]] = families.get(entry["family"], 0) + 1
    print(len(grouped), "seeds,", len({e["op"] for e in grouped.values()}), "operators:", dict(sorted(families.items())), file=sys.stderr)
