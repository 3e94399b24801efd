"""What a task of a composer that is not ours may be made of.

Its text is parsed, never run, until nothing in it is left to object to: one class `Model`, the functions `get_inputs` and
`get_init_inputs`, constants; names of Python and PyTorch from lists; no attribute that begins with an underscore. Such a
text can still compute nonsense or too much, which the sandbox contains, but it has nothing to reach for.
"""

from __future__ import annotations

import ast

IMPORTS = {"torch", "torch.nn", "torch.nn.functional", "math"}
FROM = {"torch": {"nn", "Tensor"}, "torch.nn": {"functional"}, "typing": {"Optional", "List", "Tuple"}}
BUILTINS = {
    "range", "len", "int", "float", "bool", "tuple", "list", "dict", "max", "min", "sum", "abs", "zip", "enumerate", "isinstance",
    "super", "round", "reversed", "sorted", "print",
}
# Parts of torch that compute nothing and reach for files, code, devices or other processes.
FORBIDDEN = {
    "load", "save", "hub", "jit", "ops", "classes", "multiprocessing", "distributed", "utils", "package", "serialization", "library",
    "from_file", "compile", "export", "fx", "onnx", "profiler", "cuda", "cpu", "backends", "storage", "UntypedStorage", "set_default_device",
    "set_default_dtype", "manual_seed", "seed", "set_rng_state", "set_num_threads", "data_ptr", "numpy", "tofile", "share_memory_", "apply",
    "register_forward_hook", "register_forward_pre_hook", "register_module", "load_state_dict", "from_numpy", "frombuffer", "vmap", "func",
    "overrides", "testing", "autograd", "futures", "rpc", "mtia", "xpu", "mps", "version", "sys", "os", "importlib", "map_", "map2_", "apply_",
    "dropout", "bernoulli", "multinomial", "nonzero", "masked_select", "unique", "item", "tolist", "dispatch", "to_dlpack", "from_dlpack",
}
STATEMENTS = (
    ast.Module, ast.Import, ast.ImportFrom, ast.alias, ast.ClassDef, ast.FunctionDef, ast.arguments, ast.arg, ast.Return, ast.Assign,
    ast.AugAssign, ast.AnnAssign, ast.Expr, ast.If, ast.For, ast.Pass, ast.Name, ast.Attribute, ast.Call, ast.keyword, ast.Constant,
    ast.Tuple, ast.List, ast.Dict, ast.Subscript, ast.Slice, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.ListComp,
    ast.GeneratorExp, ast.comprehension, ast.Starred, ast.Load, ast.Store, ast.JoinedStr, ast.FormattedValue, ast.Assert,
    ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
)


def objection(code: str) -> str | None:
    """Why it may not be run, or None."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"does not parse: {error}"
    defined = {"self", "torch", "nn", "F", "math", "Tensor", "Optional", "List", "Tuple"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            defined.add(node.id)
        elif isinstance(node, ast.arg):
            defined.add(node.arg)
        elif isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            defined.add(node.name)
    if not any(isinstance(node, ast.ClassDef) and node.name == "Model" for node in tree.body):
        return "no class `Model`"
    if not any(isinstance(node, ast.FunctionDef) and node.name == "get_inputs" for node in tree.body):
        return "no function `get_inputs`"
    for node in ast.walk(tree):
        found = _object(node, defined)
        if found:
            return f"line {getattr(node, 'lineno', 0)}: {found}"
    return None


def _object(node: ast.AST, defined: set[str]) -> str | None:
    if not isinstance(node, STATEMENTS):
        return f"`{type(node).__name__}` is not allowed"
    match node:
        case ast.Import():
            for name in node.names:
                if name.name not in IMPORTS:
                    return f"imports `{name.name}`"
                if (name.asname or name.name.split(".")[0]) not in ("torch", "nn", "F", "math"):
                    return f"imports `{name.name}` as `{name.asname}`"
        case ast.ImportFrom():
            allowed = FROM.get(node.module or "", set())
            for name in node.names:
                if node.level or name.name not in allowed or (name.asname or name.name) not in ("nn", "F", "Tensor", "functional", "Optional", "List", "Tuple"):
                    return f"imports `{name.name}` from `{node.module}`"
        case ast.ClassDef():
            if node.decorator_list or node.keywords:
                return "a class with decorators or keywords"
            if [ast.unparse(base) for base in node.bases] not in (["nn.Module"], ["torch.nn.Module"]):
                return "a class that is no `nn.Module`"
        case ast.FunctionDef():
            if node.decorator_list:
                return "a decorator"
            if node.name.startswith("_") and node.name != "__init__":
                return f"a function called `{node.name}`"
        case ast.Name():
            if node.id.startswith("_") and node.id != "_":
                return f"the name `{node.id}`"
            if isinstance(node.ctx, ast.Store) and node.id in BUILTINS | {"torch", "nn", "F", "math"}:
                return f"assigns to `{node.id}`"
            if isinstance(node.ctx, ast.Load) and node.id not in defined and node.id not in BUILTINS:
                return f"the name `{node.id}`"
        case ast.Attribute():
            if node.attr.startswith("_") and not (node.attr == "__init__" and isinstance(node.value, ast.Call)):
                return f"the attribute `{node.attr}`"
            if node.attr in FORBIDDEN:
                return f"`{node.attr}`"
            if isinstance(node.ctx, ast.Store) and not (isinstance(node.value, ast.Name) and node.value.id == "self"):
                return "assigns to an attribute of something else than `self`"
        case ast.FormattedValue():
            return "a formatted string"
    return None
