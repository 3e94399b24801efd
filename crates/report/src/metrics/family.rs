use serde::Serialize;
use warpsmith_schema::Task;

/// What kind of work a task is, from its level and its name as KernelBench gives them: level 1 names one operator, level 2 a
/// chain by its operators in order, level 3 a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    Matmul,
    Convolution,
    Activation,
    Normalization,
    Pooling,
    Reduction,
    Scan,
    Loss,
    /// Chains that begin with a matrix product.
    MatmulChain,
    ConvolutionChain,
    Perceptron,
    ConvolutionalNetwork,
    RecurrentNetwork,
    Attention,
    StateSpace,
    Other,
}

/// Parts of names, lower case. The first that is found decides, so what contains another word stands before it.
const NETWORKS: [(&str, Family); 24] = [
    ("mamba", Family::StateSpace),
    ("attention", Family::Attention),
    ("transformer", Family::Attention),
    ("gpt", Family::Attention),
    ("bert", Family::Attention),
    ("lstm", Family::RecurrentNetwork),
    ("ltsm", Family::RecurrentNetwork),
    ("gru", Family::RecurrentNetwork),
    ("rnn", Family::RecurrentNetwork),
    ("swinmlp", Family::Attention),
    ("mlp", Family::Perceptron),
    ("resnet", Family::ConvolutionalNetwork),
    ("densenet", Family::ConvolutionalNetwork),
    ("googlenet", Family::ConvolutionalNetwork),
    ("squeezenet", Family::ConvolutionalNetwork),
    ("mobilenet", Family::ConvolutionalNetwork),
    ("efficientnet", Family::ConvolutionalNetwork),
    ("shufflenet", Family::ConvolutionalNetwork),
    ("alexnet", Family::ConvolutionalNetwork),
    ("regnet", Family::ConvolutionalNetwork),
    ("lenet", Family::ConvolutionalNetwork),
    ("unet", Family::ConvolutionalNetwork),
    ("vgg", Family::ConvolutionalNetwork),
    ("inception", Family::ConvolutionalNetwork),
];

const OPERATORS: [(&str, Family); 38] = [
    ("loss", Family::Loss),
    ("crossentropy", Family::Loss),
    ("cross_entropy", Family::Loss),
    ("attention", Family::Attention),
    ("cumsum", Family::Scan),
    ("cumprod", Family::Scan),
    ("cumulative", Family::Scan),
    ("conv", Family::Convolution),
    ("matmul", Family::Matmul),
    ("matrix", Family::Matmul),
    ("matvec", Family::Matmul),
    ("gemm", Family::Matmul),
    ("bmm", Family::Matmul),
    ("linear", Family::Matmul),
    ("pool", Family::Pooling),
    ("norm", Family::Normalization),
    ("softmax", Family::Activation),
    ("logsumexp", Family::Reduction),
    ("reduction", Family::Reduction),
    ("argmax", Family::Reduction),
    ("argmin", Family::Reduction),
    ("relu", Family::Activation),
    ("gelu", Family::Activation),
    ("selu", Family::Activation),
    ("elu", Family::Activation),
    ("sigmoid", Family::Activation),
    ("tanh", Family::Activation),
    ("swish", Family::Activation),
    ("silu", Family::Activation),
    ("mish", Family::Activation),
    ("softplus", Family::Activation),
    ("softsign", Family::Activation),
    ("pointwise", Family::Activation),
    ("reduce", Family::Reduction),
    ("mlp", Family::Perceptron),
    ("lstm", Family::RecurrentNetwork),
    ("gru", Family::RecurrentNetwork),
    ("rnn", Family::RecurrentNetwork),
];

impl Family {
    pub fn of(task: &Task) -> Self {
        let name = task.name.to_lowercase();
        match task.level {
            Some(2) => Self::of_chain(&name),
            Some(3 | 4) => find(&NETWORKS, &name),
            _ => find(&OPERATORS, &name),
        }
    }

    /// The operator that comes first in the name is the heavy one.
    fn of_chain(name: &str) -> Self {
        let mut operators = name.split('_').map(|word| find(&OPERATORS, word));
        match operators.find(|family| *family != Self::Other) {
            Some(Self::Matmul) => Self::MatmulChain,
            Some(Self::Convolution) => Self::ConvolutionChain,
            _ => Self::Other,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Matmul => "matmul",
            Self::Convolution => "convolution",
            Self::Activation => "activation",
            Self::Normalization => "normalization",
            Self::Pooling => "pooling",
            Self::Reduction => "reduction",
            Self::Scan => "scan",
            Self::Loss => "loss",
            Self::MatmulChain => "matmul chain",
            Self::ConvolutionChain => "convolution chain",
            Self::Perceptron => "perceptron",
            Self::ConvolutionalNetwork => "convolutional network",
            Self::RecurrentNetwork => "recurrent network",
            Self::Attention => "attention",
            Self::StateSpace => "state space",
            Self::Other => "other",
        }
    }
}

fn find(words: &[(&str, Family)], name: &str) -> Family {
    let found = words.iter().find(|(word, _)| name.contains(word));
    found.map_or(Family::Other, |(_, family)| *family)
}
