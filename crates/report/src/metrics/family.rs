use serde::Serialize;
use warpsmith_schema::Task;

/// What kind of work a task is, from its level and its name as KernelBench gives them: level 1 names one operator, level 2 a
/// chain by its operators in order, level 3 a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskFamily {
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
const NETWORKS: [(&str, TaskFamily); 24] = [
    ("mamba", TaskFamily::StateSpace),
    ("attention", TaskFamily::Attention),
    ("transformer", TaskFamily::Attention),
    ("gpt", TaskFamily::Attention),
    ("bert", TaskFamily::Attention),
    ("lstm", TaskFamily::RecurrentNetwork),
    ("ltsm", TaskFamily::RecurrentNetwork),
    ("gru", TaskFamily::RecurrentNetwork),
    ("rnn", TaskFamily::RecurrentNetwork),
    ("swinmlp", TaskFamily::Attention),
    ("mlp", TaskFamily::Perceptron),
    ("resnet", TaskFamily::ConvolutionalNetwork),
    ("densenet", TaskFamily::ConvolutionalNetwork),
    ("googlenet", TaskFamily::ConvolutionalNetwork),
    ("squeezenet", TaskFamily::ConvolutionalNetwork),
    ("mobilenet", TaskFamily::ConvolutionalNetwork),
    ("efficientnet", TaskFamily::ConvolutionalNetwork),
    ("shufflenet", TaskFamily::ConvolutionalNetwork),
    ("alexnet", TaskFamily::ConvolutionalNetwork),
    ("regnet", TaskFamily::ConvolutionalNetwork),
    ("lenet", TaskFamily::ConvolutionalNetwork),
    ("unet", TaskFamily::ConvolutionalNetwork),
    ("vgg", TaskFamily::ConvolutionalNetwork),
    ("inception", TaskFamily::ConvolutionalNetwork),
];

const OPERATORS: [(&str, TaskFamily); 38] = [
    ("loss", TaskFamily::Loss),
    ("crossentropy", TaskFamily::Loss),
    ("cross_entropy", TaskFamily::Loss),
    ("attention", TaskFamily::Attention),
    ("cumsum", TaskFamily::Scan),
    ("cumprod", TaskFamily::Scan),
    ("cumulative", TaskFamily::Scan),
    ("conv", TaskFamily::Convolution),
    ("matmul", TaskFamily::Matmul),
    ("matrix", TaskFamily::Matmul),
    ("matvec", TaskFamily::Matmul),
    ("gemm", TaskFamily::Matmul),
    ("bmm", TaskFamily::Matmul),
    ("linear", TaskFamily::Matmul),
    ("pool", TaskFamily::Pooling),
    ("norm", TaskFamily::Normalization),
    ("softmax", TaskFamily::Activation),
    ("logsumexp", TaskFamily::Reduction),
    ("reduction", TaskFamily::Reduction),
    ("argmax", TaskFamily::Reduction),
    ("argmin", TaskFamily::Reduction),
    ("relu", TaskFamily::Activation),
    ("gelu", TaskFamily::Activation),
    ("selu", TaskFamily::Activation),
    ("elu", TaskFamily::Activation),
    ("sigmoid", TaskFamily::Activation),
    ("tanh", TaskFamily::Activation),
    ("swish", TaskFamily::Activation),
    ("silu", TaskFamily::Activation),
    ("mish", TaskFamily::Activation),
    ("softplus", TaskFamily::Activation),
    ("softsign", TaskFamily::Activation),
    ("pointwise", TaskFamily::Activation),
    ("reduce", TaskFamily::Reduction),
    ("mlp", TaskFamily::Perceptron),
    ("lstm", TaskFamily::RecurrentNetwork),
    ("gru", TaskFamily::RecurrentNetwork),
    ("rnn", TaskFamily::RecurrentNetwork),
];

impl TaskFamily {
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

fn find(words: &[(&str, TaskFamily)], name: &str) -> TaskFamily {
    let found = words.iter().find(|(word, _)| name.contains(word));
    found.map_or(TaskFamily::Other, |(_, family)| *family)
}
