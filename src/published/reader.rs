//! Reads a function's text and works it out as it is read.

use super::number::{Fraction, Kind, Number};
use super::shape::Shape;
use super::tokens::{Piece, Token, tokens};
use super::{Function, Language, Operand, Unreadable, quotation};
use crate::id::{Layout, Millis};

type Read<T> = Result<T, Unreadable>;

/// How deeply expressions can be nested, so that no text exhausts the stack.
const DEEPEST: usize = 64;

/// What an expression gives.
#[derive(Clone, Debug)]
enum Value {
    Null,
    /// A text, or a literal of a type that is known by its text.
    Text(Vec<u8>),
    /// The present instant.
    Instant,
    /// The present instant by the clock of UTC, without its time zone.
    Utc,
    /// An argument as it is.
    Argument(usize),
    Number(Number),
    /// What `next_id` returns.
    Native {
        shard: Operand<i128>,
        sequence: Operand<Vec<u8>>,
        layout: Layout,
    },
}

/// What a type does to a value.
#[derive(Clone, Copy, Debug)]
enum Type {
    Number(Kind),
    /// Of numbers that have no decimals, though their type is not one of whole numbers.
    Rounded,
    Text,
    Instant,
    /// Changes a value in a way that is of no use here.
    Foreign,
    /// A user's own, or one of texts that stand for something else: keeps it.
    Other,
}

#[derive(Debug)]
struct Variable {
    name: Vec<u8>,
    kind: Type,
    value: Value,
    /// Of which variable this is another name.
    alias: Option<usize>,
}

#[derive(Debug)]
struct Reader<'a> {
    source: &'a [u8],
    tokens: Vec<Token<'a>>,
    /// The next token.
    at: usize,
    depth: usize,
    /// The input arguments, the OUT argument, and what is declared: the last of a name is meant.
    variables: Vec<Variable>,
    /// How many input arguments there are.
    inputs: usize,
    /// How many of the variables are arguments.
    parameters: usize,
    label: Option<Vec<u8>>,
    /// What `nextval` was called with.
    sequence: Option<Operand<Vec<u8>>>,
}

/// What a function returns.
pub(super) fn result(function: &Function) -> Read<Shape> {
    let inputs = function.arguments.iter().zip(1..).map(|(name, number)| Variable {
        name: name.clone(),
        kind: Type::Other,
        value: Value::Argument(number),
        alias: None,
    });
    let output = function.result.filter(|_| function.language == Language::PlPgSql).map(|name| Variable {
        name: name.to_vec(),
        kind: Type::Number(Kind::Bigint),
        value: Value::Null,
        alias: None,
    });
    let has_output = output.is_some();
    let variables: Vec<_> = inputs.chain(output).collect();
    let mut reader = Reader {
        source: function.source,
        tokens: tokens(function.source)?,
        at: 0,
        depth: 0,
        inputs: function.arguments.len(),
        parameters: variables.len(),
        variables,
        label: None,
        sequence: None,
    };
    let value = match function.language {
        Language::PlPgSql => reader.block(has_output)?,
        Language::Sql => reader.query()?,
    };
    match converted(value, Type::Number(Kind::Bigint)) {
        Some(Value::Number(id)) => Ok(Shape::Computed { id, sequence: reader.sequence }),
        Some(Value::Native { .. }) if reader.sequence.is_some() => Err(Unreadable::NextvalTwice),
        Some(Value::Native { shard, sequence, layout }) => Ok(Shape::Native { shard, sequence, layout }),
        Some(Value::Null) => Err(Unreadable::NoResult),
        _ => Err(Unreadable::NotANumber),
    }
}

// What the text is made of.
impl<'a> Reader<'a> {
    fn piece(&self) -> &Piece<'a> {
        self.tokens.get(self.at).map_or(&Piece::End, |token| &token.piece)
    }

    fn piece_after(&self) -> &Piece<'a> {
        self.tokens.get(self.at + 1).map_or(&Piece::End, |token| &token.piece)
    }

    /// The text from that token on.
    fn text_from(&self, token: usize) -> &'a [u8] {
        let at = self.tokens.get(token).map_or(self.source.len(), |token| token.at);
        self.source.get(at..).unwrap_or_default()
    }

    /// The text from that token up to the next one.
    fn since(&self, token: usize) -> String {
        let text = self.text_from(token);
        quotation(&text[..text.len().saturating_sub(self.text_from(self.at).len())])
    }

    fn not_understood<T>(&self) -> Read<T> {
        Err(match self.piece() {
            Piece::End => Unreadable::CutOff,
            _ => Unreadable::NotUnderstood(quotation(self.text_from(self.at))),
        })
    }

    /// That statement, which is not for minting.
    fn more_than_minting<T>(&self, statement: usize) -> Read<T> {
        let ends = |token: &&Token| matches!(token.piece, Piece::Symbol(b";") | Piece::End);
        if *self.piece() == Piece::End && statement == self.at {
            return Err(Unreadable::CutOff);
        }
        let rest = self.text_from(statement);
        let end = self.tokens.iter().skip(statement).find(ends).map_or(self.source.len(), |token| token.at);
        let length = rest.len().saturating_sub(self.source.len().saturating_sub(end));
        Err(Unreadable::MoreThanMinting(quotation(&rest[..length])))
    }

    fn is_word(&self, word: &str) -> bool {
        matches!(self.piece(), Piece::Word(name) if name == word.as_bytes())
    }

    fn is_symbol(&self, symbol: &str) -> bool {
        matches!(self.piece(), Piece::Symbol(is) if *is == symbol.as_bytes())
    }

    /// Whether the word comes next; then it is taken.
    fn takes(&mut self, word: &str) -> bool {
        let is_next = self.is_word(word);
        self.at += usize::from(is_next);
        is_next
    }

    /// Whether the symbol comes next; then it is taken.
    fn takes_symbol(&mut self, symbol: &str) -> bool {
        let is_next = self.is_symbol(symbol);
        self.at += usize::from(is_next);
        is_next
    }

    fn need(&mut self, word: &str) -> Read<()> {
        if self.takes(word) { Ok(()) } else { self.not_understood() }
    }

    fn need_symbol(&mut self, symbol: &str) -> Read<()> {
        if self.takes_symbol(symbol) { Ok(()) } else { self.not_understood() }
    }

    fn need_end(&self) -> Read<()> {
        if *self.piece() == Piece::End { Ok(()) } else { self.more_than_minting(self.at) }
    }

    fn name(&mut self) -> Read<Vec<u8>> {
        let (Piece::Word(name) | Piece::Quoted(name)) = self.piece() else { return self.not_understood() };
        let name = name.clone();
        self.at += 1;
        Ok(name)
    }

    /// A name and what qualifies it, from the outermost on.
    fn qualified_name(&mut self) -> Read<Vec<Vec<u8>>> {
        let mut names = vec![self.name()?];
        while self.takes_symbol(".") {
            names.push(self.name()?);
        }
        Ok(names)
    }
}

// Statements.
impl Reader<'_> {
    /// The body of a function in PL/pgSQL.
    fn block(&mut self, has_output: bool) -> Read<Value> {
        if self.takes_symbol("<<") {
            self.label = Some(self.name()?);
            self.need_symbol(">>")?;
        }
        if self.takes("declare") {
            while !self.is_word("begin") {
                if !self.takes("declare") {
                    self.declaration()?;
                }
            }
        }
        self.need("begin")?;
        let mut returned = None;
        while !self.takes("end") {
            let statement = self.at;
            if returned.is_some() || self.is_word("exception") {
                return self.more_than_minting(statement);
            }
            returned = self.statement(has_output)?;
            self.need_symbol(";")?;
        }
        if matches!(self.piece(), Piece::Word(_) | Piece::Quoted(_)) {
            self.at += 1;
        }
        self.takes_symbol(";");
        self.need_end()?;
        match returned {
            Some(Value::Null) | None if has_output => Ok(self.variables[self.inputs].value.clone()),
            returned => returned.ok_or(Unreadable::NoResult),
        }
    }

    fn declaration(&mut self) -> Read<()> {
        let name = self.name()?;
        if self.takes("alias") {
            self.need("for")?;
            let original = self.at;
            let index = if let Piece::Parameter(number) = *self.piece() {
                self.at += 1;
                number.checked_sub(1).filter(|&index| index < self.inputs)
            } else {
                let names = self.qualified_name()?;
                self.variable(&names)
            };
            let unknown = || Unreadable::UnknownName(self.since(original));
            let alias = Some(index.ok_or_else(unknown)?);
            self.variables.push(Variable { name, kind: Type::Other, value: Value::Null, alias });
            return self.need_symbol(";");
        }
        self.takes("constant");
        let kind = self.type_name()?;
        if self.takes("not") {
            self.need("null")?;
        }
        let start = self.at;
        let mut value = Value::Null;
        if self.takes_symbol(":=") || self.takes_symbol("=") || self.takes("default") {
            value = self.expression()?;
            value = converted(value, kind).ok_or_else(|| Unreadable::Assigns(self.since(start - 1)))?;
        }
        // Only now, as it does not stand for itself in its own default.
        self.variables.push(Variable { name, kind, value, alias: None });
        self.need_symbol(";")
    }

    /// Does a statement, up to its semicolon. What it returns, if it does: NULL where that is in the OUT argument.
    fn statement(&mut self, has_output: bool) -> Read<Option<Value>> {
        let statement = self.at;
        let is_assignment = |symbol: &Piece| matches!(symbol, Piece::Symbol(b":=" | b"=" | b"."));
        if matches!(self.piece(), Piece::Word(_) | Piece::Quoted(_)) && is_assignment(self.piece_after()) {
            let names = self.qualified_name()?;
            if !self.takes_symbol(":=") && !self.takes_symbol("=") {
                return self.more_than_minting(statement);
            }
            let value = self.expression()?;
            self.assign(statement, &names, value)?;
            return Ok(None);
        }
        if self.takes("null") {
            return Ok(None);
        }
        if self.takes("return") {
            if has_output || self.is_symbol(";") {
                return Ok(Some(Value::Null));
            }
            return self.expression().map(Some);
        }
        if !self.takes("select") {
            return self.more_than_minting(statement);
        }
        let mut targets = self.targets()?;
        let mut values = Vec::new();
        loop {
            values.push(self.selected()?);
            if !self.takes_symbol(",") {
                break;
            }
        }
        if targets.is_empty() {
            targets = self.targets()?;
        }
        if !self.is_symbol(";") {
            return self.more_than_minting(statement);
        }
        if targets.len() != values.len() {
            return Err(Unreadable::Assigns(self.since(statement)));
        }
        for (names, value) in targets.iter().zip(values) {
            self.assign(statement, names, value)?;
        }
        Ok(None)
    }

    /// The names after INTO, if it comes next.
    fn targets(&mut self) -> Read<Vec<Vec<Vec<u8>>>> {
        let mut targets = Vec::new();
        if self.takes("into") {
            if self.is_word("strict") && matches!(self.piece_after(), Piece::Word(_) | Piece::Quoted(_)) {
                self.at += 1;
            }
            targets.push(self.qualified_name()?);
            while self.takes_symbol(",") {
                targets.push(self.qualified_name()?);
            }
        }
        Ok(targets)
    }

    fn assign(&mut self, statement: usize, names: &[Vec<u8>], value: Value) -> Read<()> {
        let assigned = self.variable(names).and_then(|index| {
            let variable = &mut self.variables[index];
            variable.value = converted(value, variable.kind)?;
            Some(())
        });
        assigned.ok_or_else(|| Unreadable::Assigns(self.since(statement)))
    }

    /// The body of a function in SQL.
    fn query(&mut self) -> Read<Value> {
        let atomic = self.takes("begin");
        if atomic {
            self.need("atomic")?;
        }
        let statement = self.at;
        if !self.takes("select") && !self.takes("return") {
            return self.more_than_minting(statement);
        }
        let value = self.selected()?;
        let has_semicolon = self.takes_symbol(";");
        if !has_semicolon && *self.piece() != Piece::End {
            return self.not_understood();
        }
        if atomic {
            if !self.is_word("end") {
                return self.more_than_minting(self.at);
            }
            self.at += 1;
            self.takes_symbol(";");
        }
        self.need_end()?;
        Ok(value)
    }

    /// An expression, and what it is called.
    fn selected(&mut self) -> Read<Value> {
        let value = self.expression()?;
        if self.takes("as") {
            self.name()?;
        }
        Ok(value)
    }

    /// The variable of a name, which a label or the function's name can qualify.
    fn variable(&self, names: &[Vec<u8>]) -> Option<usize> {
        let (name, among) = match names {
            [name] => (name, 0..self.variables.len()),
            [block, name] if self.variables.iter().all(|variable| variable.name != *block) => {
                let is_label = self.label.as_ref() == Some(block);
                let bounds =
                    if is_label { self.parameters..self.variables.len() } else { 0..self.parameters };
                (name, bounds)
            }
            _ => return None,
        };
        let found = among.rev().find(|&index| self.variables[index].name == *name)?;
        Some(self.variables[found].alias.unwrap_or(found))
    }

    fn type_name(&mut self) -> Read<Type> {
        let start = self.at;
        let is_quoted = matches!(self.piece(), Piece::Quoted(_));
        let names = self.qualified_name()?;
        if self.takes_symbol("%") {
            self.name()?;
            return Ok(Type::Other);
        }
        let name = match &names[..] {
            [name] if !is_quoted => &name[..],
            [schema, name] if schema == b"pg_catalog" => &name[..],
            _ => b"",
        };
        let known = match name {
            b"smallint" | b"int2" => Type::Number(Kind::Smallint),
            b"int" | b"integer" | b"int4" => Type::Number(Kind::Integer),
            b"bigint" | b"int8" => Type::Number(Kind::Bigint),
            b"numeric" | b"decimal" | b"dec" => Type::Number(Kind::Numeric),
            b"float8" | b"float" => Type::Number(Kind::Double),
            b"double" => {
                self.need("precision")?;
                Type::Number(Kind::Double)
            }
            b"character" if self.takes("varying") => Type::Text,
            b"text" | b"varchar" => Type::Text,
            b"timestamptz" => Type::Instant,
            b"timestamp" if self.takes("with") => {
                self.need("time")?;
                self.need("zone")?;
                Type::Instant
            }
            b"real" | b"float4" | b"char" | b"bpchar" | b"character" | b"name" | b"boolean" | b"bool"
            | b"money" | b"bit" | b"date" | b"time" | b"timetz" | b"timestamp" | b"interval" => Type::Foreign,
            _ => Type::Other,
        };
        if self.is_symbol("[") {
            return self.not_understood();
        }
        if !self.takes_symbol("(") {
            return Ok(known);
        }
        let is_decimal = matches!(known, Type::Number(Kind::Numeric));
        let has_decimals = match (self.piece(), self.piece_after()) {
            (Piece::Number(_), Piece::Symbol(b",")) => {
                self.at += 2;
                *self.piece() != Piece::Number(b"0")
            }
            (Piece::Number(_), _) => false,
            _ => return self.not_understood(),
        };
        self.at += 1;
        self.need_symbol(")")?;
        if !is_decimal || has_decimals {
            return Err(Unreadable::Computes(self.since(start)));
        }
        Ok(Type::Rounded)
    }
}

// Expressions.
impl Reader<'_> {
    fn expression(&mut self) -> Read<Value> {
        self.deeper(Self::operators)
    }

    fn deeper<T>(&mut self, read: impl FnOnce(&mut Self) -> Read<T>) -> Read<T> {
        if self.depth == DEEPEST {
            return Err(Unreadable::TooDeep);
        }
        self.depth += 1;
        let read = read(self);
        self.depth -= 1;
        read
    }

    /// The operators that PostgreSQL has no level of their own for: all are on one, below arithmetic.
    fn operators(&mut self) -> Read<Value> {
        self.left_to_right(Self::sum, |symbol| {
            let is_operator = symbol.iter().all(|byte| b"+-*/<>=~!@#%^&|`?".contains(byte));
            is_operator && !matches!(symbol, b"+" | b"-" | b"*" | b"/" | b"%" | b"^" | b"=" | b"<" | b">")
        })
    }

    fn sum(&mut self) -> Read<Value> {
        self.left_to_right(Self::product, |symbol| matches!(symbol, b"+" | b"-"))
    }

    fn product(&mut self) -> Read<Value> {
        self.left_to_right(Self::instant, |symbol| matches!(symbol, b"*" | b"/" | b"%"))
    }

    fn left_to_right(
        &mut self,
        operand: fn(&mut Self) -> Read<Value>,
        is_of_level: fn(&[u8]) -> bool,
    ) -> Read<Value> {
        let start = self.at;
        let mut left = operand(self)?;
        loop {
            let Piece::Symbol(symbol) = *self.piece() else { return Ok(left) };
            if !is_of_level(symbol) {
                return Ok(left);
            }
            self.at += 1;
            let right = operand(self)?;
            left = operation(symbol, &left, &right).ok_or_else(|| match (number(&left), number(&right)) {
                (Some(left), Some(right)) if symbol == b"|" && left.whole_kind(right).is_some() => {
                    Unreadable::Overlaps(self.since(start))
                }
                _ => Unreadable::Computes(self.since(start)),
            })?;
        }
    }

    /// What a time zone can come after.
    fn instant(&mut self) -> Read<Value> {
        let start = self.at;
        let value = self.signed()?;
        if !self.takes("at") {
            return Ok(value);
        }
        self.need("time")?;
        self.need("zone")?;
        let zone = self.signed()?;
        match (value, zone) {
            (Value::Instant, Value::Text(zone)) if zone.eq_ignore_ascii_case(b"utc") => Ok(Value::Utc),
            _ => Err(Unreadable::Computes(self.since(start))),
        }
    }

    fn signed(&mut self) -> Read<Value> {
        let start = self.at;
        let is_negative = self.is_symbol("-");
        if !is_negative && !self.is_symbol("+") {
            return self.cast();
        }
        self.at += 1;
        let value = self.deeper(Self::signed)?;
        let signed =
            number(&value).and_then(|number| if is_negative { number.negated() } else { Some(number) });
        signed.map(Value::Number).ok_or_else(|| Unreadable::Computes(self.since(start)))
    }

    fn cast(&mut self) -> Read<Value> {
        let start = self.at;
        let mut value = self.operand()?;
        while self.takes_symbol("::") {
            value = self.converted_to_type(start, value)?;
        }
        Ok(value)
    }

    /// The value in the type whose name comes next.
    fn converted_to_type(&mut self, start: usize, value: Value) -> Read<Value> {
        let kind = self.type_name()?;
        converted(value, kind).ok_or_else(|| Unreadable::Computes(self.since(start)))
    }

    fn operand(&mut self) -> Read<Value> {
        let start = self.at;
        match self.piece() {
            Piece::Literal(text) => {
                let text = Value::Text(text.clone());
                self.at += 1;
                Ok(text)
            }
            Piece::Number(text) => {
                let number = Number::literal(text);
                self.at += 1;
                number.map(Value::Number).ok_or_else(|| Unreadable::Computes(self.since(start)))
            }
            &Piece::Parameter(number) => {
                self.at += 1;
                let index = number.checked_sub(1).filter(|&index| index < self.inputs);
                self.value_of(index, start)
            }
            Piece::Symbol(b"(") => {
                self.at += 1;
                let value =
                    if self.takes("select") { self.deeper(Self::selected)? } else { self.expression()? };
                self.need_symbol(")")?;
                Ok(value)
            }
            Piece::Word(_) | Piece::Quoted(_) => self.named(),
            _ => self.not_understood(),
        }
    }

    /// What begins with a name: a call, a literal after its type, or a variable.
    fn named(&mut self) -> Read<Value> {
        let start = self.at;
        let is_called = *self.piece_after() == Piece::Symbol(b"(");
        match self.piece() {
            Piece::Word(word) if word == b"cast" && is_called => {
                self.at += 2;
                let value = self.expression()?;
                self.need("as")?;
                let value = self.converted_to_type(start, value)?;
                self.need_symbol(")")?;
                return Ok(value);
            }
            Piece::Word(word) if word == b"extract" && is_called => {
                self.at += 2;
                return self.extracted(start);
            }
            Piece::Word(word) if word == b"null" => {
                self.at += 1;
                return Ok(Value::Null);
            }
            Piece::Word(word) if word == b"current_timestamp" && !is_called => {
                self.at += 1;
                return Ok(Value::Instant);
            }
            _ => {}
        }
        let names = self.qualified_name()?;
        if self.is_symbol("(") {
            let called = self.since(start);
            self.at += 1;
            let arguments = self.arguments()?;
            return self.call(start, &called, &names, &arguments);
        }
        let after = self.at;
        self.at = start;
        if matches!(self.type_name(), Ok(Type::Number(_) | Type::Rounded | Type::Text | Type::Other))
            && let Piece::Literal(text) = self.piece()
        {
            let text = Value::Text(text.clone());
            self.at = start;
            let kind = self.type_name()?;
            self.at += 1;
            return converted(text, kind).ok_or_else(|| Unreadable::Computes(self.since(start)));
        }
        self.at = after;
        self.value_of(self.variable(&names), start)
    }

    /// The value of a variable that is there and not NULL.
    fn value_of(&self, index: Option<usize>, start: usize) -> Read<Value> {
        match index.map(|index| &self.variables[index].value) {
            None => Err(Unreadable::UnknownName(self.since(start))),
            Some(Value::Null) => Err(Unreadable::Unassigned(self.since(start))),
            Some(value) => Ok(value.clone()),
        }
    }

    /// What EXTRACT gives, from the field on.
    fn extracted(&mut self, start: usize) -> Read<Value> {
        let is_epoch = match self.piece() {
            Piece::Word(field) | Piece::Quoted(field) | Piece::Literal(field) => {
                field.eq_ignore_ascii_case(b"epoch")
            }
            _ => return self.not_understood(),
        };
        self.at += 1;
        self.need("from")?;
        let of = self.expression()?;
        self.need_symbol(")")?;
        if is_epoch && matches!(of, Value::Instant | Value::Utc) {
            Ok(Value::Number(Number::seconds(Kind::Numeric)))
        } else {
            Err(Unreadable::Computes(self.since(start)))
        }
    }

    /// The arguments of a call, and the parenthesis after them.
    fn arguments(&mut self) -> Read<Vec<Value>> {
        let mut arguments = Vec::new();
        if self.takes_symbol(")") {
            return Ok(arguments);
        }
        loop {
            arguments.push(self.expression()?);
            if !self.takes_symbol(",") {
                break;
            }
        }
        self.need_symbol(")")?;
        Ok(arguments)
    }

    fn call(&mut self, start: usize, called: &str, names: &[Vec<u8>], arguments: &[Value]) -> Read<Value> {
        let (name, is_core) = match names {
            [name] => (&name[..], true),
            [schema, name] => (&name[..], schema == b"pg_catalog"),
            _ => (&b""[..], false),
        };
        let unknown = || Unreadable::Calls(called.to_owned());
        let computed = match (name, arguments) {
            (b"next_id", [shard, sequence, layout @ ..]) if layout.len() < 2 => {
                return native(shard, sequence, layout.first())
                    .ok_or_else(|| Unreadable::Computes(self.since(start)));
            }
            _ if !is_core => return Err(unknown()),
            (b"nextval", [sequence]) => {
                let sequence =
                    sequence_of(sequence).ok_or_else(|| Unreadable::Sequence(self.since(start)))?;
                if self.sequence.replace(sequence).is_some() {
                    return Err(Unreadable::NextvalTwice);
                }
                Some(Number::next())
            }
            (b"now" | b"clock_timestamp" | b"transaction_timestamp" | b"statement_timestamp", []) => {
                return Ok(Value::Instant);
            }
            (b"date_part", [Value::Text(field), Value::Instant | Value::Utc])
                if field.eq_ignore_ascii_case(b"epoch") =>
            {
                Some(Number::seconds(Kind::Double))
            }
            (b"floor" | b"trunc" | b"round", [of]) => number(of).and_then(Number::floored),
            (b"mod", [left, right]) => operation(b"%", left, right).as_ref().and_then(number),
            _ => return Err(unknown()),
        };
        computed.map(Value::Number).ok_or_else(|| Unreadable::Computes(self.since(start)))
    }
}

fn number(value: &Value) -> Option<Number> {
    match *value {
        Value::Number(number) => Some(number),
        Value::Argument(argument) => Some(Number::argument(argument)),
        _ => None,
    }
}

fn operation(symbol: &[u8], left: &Value, right: &Value) -> Option<Value> {
    let (left, right) = (number(left)?, number(right)?);
    let result = match symbol {
        b"+" => left.plus(right),
        b"-" => left.minus(right),
        b"*" => left.times(right),
        b"/" => left.divided_by(right),
        b"%" => left.modulo(right),
        b"<<" => left.shifted_left(right),
        b">>" => left.shifted_right(right),
        b"&" => left.and(right),
        b"|" => left.or(right),
        _ => None,
    };
    result.map(Value::Number)
}

/// A value in a type, or as a variable of the type holds it.
fn converted(value: Value, kind: Type) -> Option<Value> {
    match (value, kind) {
        (Value::Null, _) => Some(Value::Null),
        (Value::Text(text), Type::Number(kind)) => {
            let (sign, digits) = match text.trim_ascii() {
                [b'-', digits @ ..] => (Fraction::whole(-1), digits),
                digits => (Fraction::ONE, digits),
            };
            let number =
                digits.first().filter(|digit| digit.is_ascii_digit()).and(Number::literal(digits))?;
            number.times(Number::constant(sign, Kind::Integer))?.of(kind).map(Value::Number)
        }
        (value @ (Value::Text(_) | Value::Argument(_)), Type::Text | Type::Other)
        | (value @ Value::Instant, Type::Instant)
        | (value @ Value::Native { .. }, Type::Number(Kind::Bigint) | Type::Other) => Some(value),
        (value @ (Value::Argument(_) | Value::Number(_)), Type::Number(kind)) => {
            number(&value)?.of(kind).map(Value::Number)
        }
        (Value::Number(number), Type::Rounded) => {
            Some(Value::Number(Number { kind: Kind::Numeric, ..number.rounded()? }))
        }
        (Value::Number(number), Type::Other) => number.is_whole().then_some(Value::Number(number)),
        _ => None,
    }
}

fn sequence_of(value: &Value) -> Option<Operand<Vec<u8>>> {
    match value {
        Value::Text(name) => Some(Operand::Constant(name.clone())),
        Value::Argument(number) => Some(Operand::Argument(*number)),
        _ => None,
    }
}

/// What `next_id` returns for these arguments.
fn native(shard: &Value, sequence: &Value, layout: Option<&Value>) -> Option<Value> {
    let shard = number(shard)?;
    let shard = match (shard.known(), shard.argument) {
        (Some(known), _) => Operand::Constant(known.to_whole()?),
        (None, Some(argument)) if shard.is_bare_argument() => Operand::Argument(argument.number),
        _ => return None,
    };
    let layout = match layout {
        None => Layout::INSTAGRAM,
        // Whether its epoch has come, who uses it finds out.
        Some(Value::Text(text)) => Layout::parse(text, Millis::LAST).ok()?,
        Some(_) => return None,
    };
    Some(Value::Native { shard, sequence: sequence_of(sequence)?, layout })
}
