"""What is known of operators beforehand: values worth trying, shapes they need, names that are others' or none at all.

Tables only; `walk.py` tries everything that stands here.
"""

from __future__ import annotations

import re

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
