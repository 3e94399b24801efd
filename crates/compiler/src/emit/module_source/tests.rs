use super::*;

#[test]
fn a_module_is_read() {
    let source = "import torch\nimport torch.nn as nn\n\nSIZE = 4\n\n\nclass Model(nn.Module):\n    \"\"\"Words.\"\"\"\n\n    def __init__(self, size):\n        super(Model, self).__init__()\n        self.layer = nn.Linear(size, SIZE)\n\n    def forward(self, x: torch.Tensor, y=None):\n        return self.layer(x)\n\n\ndef get_inputs():\n    return []\n";
    let module = Module::read(source).unwrap();
    assert_eq!(module.inputs, ["x", "y"]);
    assert_eq!(module.signature, ["x", "y=None"]);
    let typed = source.replace("y=None", "y: tuple[int, int] = (1, 2), z: dict = {}");
    let typed = Module::read(&typed).unwrap();
    assert_eq!(typed.inputs, ["x", "y", "z"]);
    assert_eq!(typed.signature, ["x", "y=(1, 2)", "z={}"]);
    assert_eq!(
        module.preamble,
        "import torch\nimport torch.nn as nn\nfrom warpsmith_kernels import kernels\n\nSIZE = 4"
    );
    let unused = source.replace(
        "SIZE = 4",
        "# Sizes\nSIZE = 4\nsize = 8  # more\nbatch = (2, 3)\nheight = width = 64\nrows, columns = 2, 3",
    );
    assert_eq!(Module::read(&unused).unwrap(), module);
    let said = source.replace(
        "        super(Model",
        "        \"\"\"\n        Words.\n\n        Args:\n            size (int): more\n        \"\"\"\n        super(Model",
    );
    assert_eq!(Module::read(&said).unwrap(), module);
    let said = source.replace(
        "        super(Model",
        "        \"\"\"Words.\"\"\"\n        super(Model",
    );
    assert_eq!(Module::read(&said).unwrap(), module);
    assert_eq!(
        module.constructor.as_deref(),
        Some(
            "    def __init__(self, size):\n        super().__init__()\n        self.layer = nn.Linear(size, SIZE)"
        )
    );
}

#[test]
fn what_a_constructor_needs_comes_with_it() {
    let source = "import torch.nn as nn\n\nclass Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.layer = self._make(4)\n\n    @staticmethod\n    def _make(size):\n        return Block(size)\n\n    def _unused(self):\n        pass\n\n    def forward(self, x):\n        return self.layer(x)\n\n\nclass Base(nn.Module):\n    pass\n\nclass Other:\n    pass\n\nclass Block(Base):\n    pass\n\ndef get_inputs():\n    return []\n";
    let text = Module::read(source).unwrap().write(&[], &[], "x", "x");
    let order = [
        "class Base",
        "class Block",
        "class ModelNew",
        "def __init__",
        "@staticmethod",
        "def _make",
        "def forward",
    ];
    let places: Vec<Option<usize>> = order.iter().map(|part| text.find(part)).collect();
    assert!(
        places.iter().all(Option::is_some) && places.is_sorted(),
        "{text}"
    );
    for left_out in ["_unused", "class Other", "get_inputs"] {
        assert!(!text.contains(left_out), "{text}");
    }
}

#[test]
fn a_constructor_finds_the_attributes_of_its_class() {
    let source = "class Model(nn.Module):\n    \"\"\"Words:\n    scale = 3\n    \"\"\"\n    expansion: int = 4\n    sizes = [\n        expansion,\n        8,\n    ]\n    unused = 1\n\n    def __init__(self, scale):\n        super().__init__()\n        self.layer = nn.Linear(self.sizes[0], scale)\n\n    def forward(self, x):\n        return x\n";
    let constructor = Module::read(source).unwrap().constructor.unwrap();
    assert!(
        constructor.starts_with("    expansion: int = 4\n\n    sizes = [\n        expansion,\n        8,\n    ]\n\n    def __init__"),
        "{constructor}"
    );
    assert!(!constructor.contains("unused"), "{constructor}");
    assert!(!constructor.contains("scale = 3"), "{constructor}");
}

fn written(source: &str) -> String {
    let module = Module::read(source).unwrap();
    module.write(&[], &[], "x", "x")
}

#[test]
fn torch_and_the_bases_are_those_of_the_module() {
    for (imports, bases, kept) in [
        ("from torch import nn", "nn.Module", "nn.Module"),
        ("import torch", "torch.nn.Module", "torch.nn.Module"),
        ("import torch as t", "t.nn.Module", "t.nn.Module"),
        (
            "from mine import (\n    Base,\n    Mixin,\n)",
            "Base,\n    Mixin,\n",
            "Base, Mixin",
        ),
        (
            "from mine import base",
            "base(nn=(1, 2))",
            "base(nn=(1, 2))",
        ),
    ] {
        let text = written(&format!(
            "\"\"\"Words\nfrom a paper.\n\"\"\"\n{imports}\n\nclass Model({bases}):\n    def forward(self, x):\n        return x\n"
        ));
        let torch = if imports == "import torch" {
            ""
        } else {
            "import torch\n"
        };
        let expected = format!(
            "{imports}\n{torch}from warpsmith_kernels import kernels\n\n\nclass ModelNew({kept}):\n"
        );
        assert!(text.contains(&expected), "{text}");
    }
    let without = "class Model:\n    def forward(self, x):\n        return x\n";
    assert!(Module::read(without).is_err());
}

#[test]
fn comments_and_texts_at_the_margin_end_no_class() {
    let text = written(
        "import torch\n\nclass Model(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n# why\n        self.words = \"\"\"\none\n\"\"\"\n# old:\n#   def forward(self):\n    def forward(\n        self,\n        x,\n):\n        return x\n",
    );
    assert!(
        text.contains(
            "# why\n        self.words = \"\"\"\none\n\"\"\"\n\n    def forward(self, x):"
        ),
        "{text}"
    );
}

#[test]
fn arguments_of_every_kind() {
    let with = |arguments: &str| {
        Module::read(&format!(
            "class Model(Base):\n    def forward(this, {arguments}):\n        return x\n"
        ))
    };
    let module = with("x, /, y: int = 3, *, mask=None, **more").unwrap();
    assert_eq!(module.inputs, ["x", "y"]);
    assert_eq!(
        module.signature,
        ["x", "/", "y=3", "*", "mask=None", "**more"]
    );
    let refused = with("*inputs").unwrap_err().to_string();
    assert!(refused.contains("`*inputs`"), "{refused}");
}

#[test]
fn constants_that_are_read_stay() {
    let text = written(
        "import torch\nimport torch.nn.functional as F\nWIDTH = 8\nUNUSED = 9\nCONFIG = dict(width=WIDTH)\nSCALE = 2.0\nPLACES = 3\n\ndef made(n):\n    return n * PLACES\n\nclass Model(torch.nn.Module):\n    def __init__(self, act=F.relu):\n        super().__init__()\n        self.config = CONFIG\n        self.late = LATE\n        batch = made(3)\n        self.table = Model.table(batch)\n\n    @staticmethod\n    def table(n):\n        return [n]\n\n    def forward(self, x, scale=SCALE):\n        return x * scale\n\nEARLIER = 2\nLATE = EARLIER * 2\nbatch = 16\n",
    );
    for kept in [
        "import torch.nn.functional as F\n",
        "WIDTH = 8\nCONFIG = dict(width=WIDTH)\nSCALE = 2.0\nPLACES = 3\n",
        "\nEARLIER = 2\n\nLATE = EARLIER * 2\n",
        "ModelNew.table(batch)",
        "    @staticmethod\n    def table(n):",
        "def forward(self, x, scale=SCALE):",
    ] {
        assert!(text.contains(kept), "no `{kept}` in\n{text}");
    }
    for left_out in ["UNUSED", "batch = 16"] {
        assert!(!text.contains(left_out), "`{left_out}` in\n{text}");
    }
}
