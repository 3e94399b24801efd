use std::rc::Rc;

#[derive(Debug, Clone, PartialEq)]
pub enum Expression {
    Name(String),
    /// Numbers, `True`, `False`, slices: what is the same thing with another value.
    Constant,
    None,
    /// What stands between the quotes, escapes as they are written.
    Text(String),
    Attribute(Box<Expression>, String),
    Call(Box<Expression>, Vec<Argument>),
    Index(Box<Expression>, Box<Expression>),
    /// Arithmetic, comparisons, `and` and `or`, by PyTorch's names: `add`, `lt`, `matmul`.
    Binary(&'static str, Box<Expression>, Box<Expression>),
    /// `neg` or `not`.
    Unary(&'static str, Box<Expression>),
    Conditional {
        then: Box<Expression>,
        otherwise: Box<Expression>,
    },
    /// Lists and tuples.
    Sequence(Vec<Expression>),
    /// A key that is missing stands before `**rest`. An element of a set has a constant as its key.
    Map(Vec<(Option<Expression>, Expression)>),
    Comprehension {
        element: Box<Expression>,
        /// The target and the iterable of each `for`.
        loops: Vec<(Expression, Expression)>,
    },
    Lambda(Rc<Function>),
    Star(Box<Expression>),
    /// `name := value`
    Assigned(String, Box<Expression>),
    Unknown,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Argument {
    pub binding: Binding,
    pub value: Expression,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Binding {
    Positional,
    Named(String),
    Star,
    DoubleStar,
}

#[derive(Debug, Clone, PartialEq)]
pub struct FunctionParameter {
    pub binding: Binding,
    pub name: String,
    pub default: Option<Expression>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Function {
    /// Empty for a lambda.
    pub name: String,
    pub parameters: Vec<FunctionParameter>,
    pub body: Vec<Statement>,
    /// `@staticmethod`: called without the instance.
    pub is_static: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Class {
    pub name: String,
    pub bases: Vec<Expression>,
    pub body: Vec<Statement>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Statement {
    /// `a = b = value`
    Assign(Vec<Expression>, Expression),
    /// `target += value`
    Update(Expression, &'static str, Expression),
    Expression(Expression),
    Return(Option<Expression>),
    If {
        test: Expression,
        then: Vec<Statement>,
        otherwise: Vec<Statement>,
    },
    For {
        target: Expression,
        over: Expression,
        body: Vec<Statement>,
    },
    /// What runs once as far as structure goes: `while`, `with`, `try`, `else` of loops.
    Block(Vec<Statement>),
    Function(Rc<Function>),
    Class(Rc<Class>),
    /// `import path as name`; without `as` the name is the path's first part and so is the path.
    Import {
        name: String,
        path: String,
    },
}
