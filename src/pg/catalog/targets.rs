//! Which relations, types, functions and other objects of a schema a statement creates or alters.

use std::ffi::{CStr, c_char};

use pgrx::pg_sys::{self, NodeTag, ObjectType};

use super::nodes::{elements, node, text};

/// An object that a statement creates or alters.
pub(super) struct Target {
    pub(super) schema: Option<Vec<u8>>,
    pub(super) name: Vec<u8>,
    pub(super) what: What,
}

/// What a target is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    /// The statement creates it, or it is a schema.
    New,
    /// A relation that must exist.
    Relation,
    /// Another object that must exist: a function, a type, an operator and so on.
    Object,
}

/// What a statement creates, alters or empties. Statements that can name tables of other schemas, such as INSERT, have no targets.
///
/// # Safety
/// The parser returned the statement.
pub(super) unsafe fn targets(statement: *mut pg_sys::Node) -> Vec<Target> {
    // SAFETY: each node has the type that its tag says. The caller keeps the rest.
    unsafe {
        let objects = |list, kind| elements(list).filter_map(|name| object(name, kind)).collect();
        match (*statement).type_ {
            NodeTag::T_DropStmt => {
                let drop = node::<pg_sys::DropStmt>(statement);
                objects(drop.objects, drop.removeType)
            }
            NodeTag::T_GrantStmt => {
                let grant = node::<pg_sys::GrantStmt>(statement);
                objects(grant.objects, grant.objtype)
            }
            NodeTag::T_TruncateStmt => {
                objects(node::<pg_sys::TruncateStmt>(statement).relations, ObjectType::OBJECT_TABLE)
            }
            NodeTag::T_AlterObjectSchemaStmt => {
                let set = node::<pg_sys::AlterObjectSchemaStmt>(statement);
                let target = either(set.relation, set.object, set.objectType);
                target.into_iter().chain([of_schema(set.newschema)]).collect()
            }
            _ => created(statement).or_else(|| altered(statement)).into_iter().collect(),
        }
    }
}

/// What a statement creates, or the table for which it creates something.
///
/// # Safety
/// That of [`targets`].
unsafe fn created(statement: *mut pg_sys::Node) -> Option<Target> {
    // SAFETY: as in `targets`.
    unsafe {
        let relation = |name| named_by(name, What::New);
        let of_relation = |name| named_by(name, What::Relation);
        let other = |name| parts(name, What::New);
        match (*statement).type_ {
            NodeTag::T_CreateStmt => relation(node::<pg_sys::CreateStmt>(statement).relation),
            NodeTag::T_CreateForeignTableStmt => {
                relation(node::<pg_sys::CreateForeignTableStmt>(statement).base.relation)
            }
            NodeTag::T_CreateTableAsStmt => {
                relation((*node::<pg_sys::CreateTableAsStmt>(statement).into).rel)
            }
            NodeTag::T_SelectStmt => {
                let into = node::<pg_sys::SelectStmt>(statement).intoClause;
                into.as_ref().and_then(|into| relation(into.rel))
            }
            NodeTag::T_CreateSeqStmt => relation(node::<pg_sys::CreateSeqStmt>(statement).sequence),
            NodeTag::T_CompositeTypeStmt => relation(node::<pg_sys::CompositeTypeStmt>(statement).typevar),
            NodeTag::T_ViewStmt => relation(node::<pg_sys::ViewStmt>(statement).view),
            NodeTag::T_IndexStmt => of_relation(node::<pg_sys::IndexStmt>(statement).relation),
            NodeTag::T_CreateTrigStmt => of_relation(node::<pg_sys::CreateTrigStmt>(statement).relation),
            NodeTag::T_CreatePolicyStmt => of_relation(node::<pg_sys::CreatePolicyStmt>(statement).table),
            NodeTag::T_RuleStmt => of_relation(node::<pg_sys::RuleStmt>(statement).relation),
            NodeTag::T_CreateFunctionStmt => other(node::<pg_sys::CreateFunctionStmt>(statement).funcname),
            NodeTag::T_CreateEnumStmt => other(node::<pg_sys::CreateEnumStmt>(statement).typeName),
            NodeTag::T_CreateRangeStmt => other(node::<pg_sys::CreateRangeStmt>(statement).typeName),
            NodeTag::T_CreateDomainStmt => other(node::<pg_sys::CreateDomainStmt>(statement).domainname),
            NodeTag::T_DefineStmt => other(node::<pg_sys::DefineStmt>(statement).defnames),
            NodeTag::T_CreateStatsStmt => other(node::<pg_sys::CreateStatsStmt>(statement).defnames),
            NodeTag::T_CreateOpClassStmt => other(node::<pg_sys::CreateOpClassStmt>(statement).opclassname),
            NodeTag::T_CreateOpFamilyStmt => {
                other(node::<pg_sys::CreateOpFamilyStmt>(statement).opfamilyname)
            }
            NodeTag::T_CreateSchemaStmt => {
                Some(of_schema(node::<pg_sys::CreateSchemaStmt>(statement).schemaname))
            }
            _ => None,
        }
    }
}

/// What a statement alters.
///
/// # Safety
/// That of [`targets`].
unsafe fn altered(statement: *mut pg_sys::Node) -> Option<Target> {
    // SAFETY: as in `targets`.
    unsafe {
        let relation = |name| named_by(name, What::Relation);
        let other = |name| parts(name, What::Object);
        match (*statement).type_ {
            NodeTag::T_AlterTableStmt => relation(node::<pg_sys::AlterTableStmt>(statement).relation),
            NodeTag::T_AlterSeqStmt => relation(node::<pg_sys::AlterSeqStmt>(statement).sequence),
            NodeTag::T_AlterPolicyStmt => relation(node::<pg_sys::AlterPolicyStmt>(statement).table),
            NodeTag::T_RefreshMatViewStmt => relation(node::<pg_sys::RefreshMatViewStmt>(statement).relation),
            NodeTag::T_RenameStmt => {
                let rename = node::<pg_sys::RenameStmt>(statement);
                either(rename.relation, rename.object, rename.renameType)
            }
            NodeTag::T_AlterOwnerStmt => {
                let owner = node::<pg_sys::AlterOwnerStmt>(statement);
                either(owner.relation, owner.object, owner.objectType)
            }
            NodeTag::T_AlterObjectDependsStmt => {
                let depends = node::<pg_sys::AlterObjectDependsStmt>(statement);
                either(depends.relation, depends.object, depends.objectType)
            }
            NodeTag::T_CommentStmt => {
                let comment = node::<pg_sys::CommentStmt>(statement);
                object(comment.object, comment.objtype)
            }
            NodeTag::T_SecLabelStmt => {
                let label = node::<pg_sys::SecLabelStmt>(statement);
                object(label.object, label.objtype)
            }
            NodeTag::T_AlterFunctionStmt => {
                other((*node::<pg_sys::AlterFunctionStmt>(statement).func).objname)
            }
            NodeTag::T_AlterOperatorStmt => {
                other((*node::<pg_sys::AlterOperatorStmt>(statement).opername).objname)
            }
            NodeTag::T_AlterEnumStmt => other(node::<pg_sys::AlterEnumStmt>(statement).typeName),
            NodeTag::T_AlterDomainStmt => other(node::<pg_sys::AlterDomainStmt>(statement).typeName),
            NodeTag::T_AlterTypeStmt => other(node::<pg_sys::AlterTypeStmt>(statement).typeName),
            NodeTag::T_AlterStatsStmt => other(node::<pg_sys::AlterStatsStmt>(statement).defnames),
            NodeTag::T_AlterCollationStmt => other(node::<pg_sys::AlterCollationStmt>(statement).collname),
            NodeTag::T_AlterTSDictionaryStmt => {
                other(node::<pg_sys::AlterTSDictionaryStmt>(statement).dictname)
            }
            NodeTag::T_AlterTSConfigurationStmt => {
                other(node::<pg_sys::AlterTSConfigurationStmt>(statement).cfgname)
            }
            NodeTag::T_AlterOpFamilyStmt => other(node::<pg_sys::AlterOpFamilyStmt>(statement).opfamilyname),
            _ => None,
        }
    }
}

/// The target that a statement names as a relation or as another object.
///
/// # Safety
/// Each is null, or the parser returned it.
unsafe fn either(
    relation: *mut pg_sys::RangeVar,
    other: *mut pg_sys::Node,
    kind: ObjectType::Type,
) -> Option<Target> {
    // SAFETY: the caller's promise.
    unsafe { named_by(relation, What::Relation).or_else(|| object(other, kind)) }
}

/// The target that the name of an object of this type means, in any of the forms in which the parser returns it.
///
/// # Safety
/// The name is null, or the parser returned it for an object of this type.
unsafe fn object(name: *mut pg_sys::Node, kind: ObjectType::Type) -> Option<Target> {
    use ObjectType as Object;
    // SAFETY: each node has the type that its tag says. The caller keeps the rest.
    unsafe {
        match name.as_ref()?.type_ {
            NodeTag::T_RangeVar => named_by(name.cast(), What::Relation),
            NodeTag::T_TypeName => parts(node::<pg_sys::TypeName>(name).names, What::Object),
            NodeTag::T_ObjectWithArgs => parts(node::<pg_sys::ObjectWithArgs>(name).objname, What::Object),
            NodeTag::T_List if kind == Object::OBJECT_DOMCONSTRAINT => {
                // The domain, or all parts of its name.
                let first = elements::<pg_sys::Node>(name.cast()).next()?;
                if (*first).type_ == NodeTag::T_TypeName {
                    object(first, kind)
                } else {
                    parts(name.cast(), What::Object)
                }
            }
            NodeTag::T_List => {
                let mut parts = names(name.cast());
                match kind {
                    // The last part names something of the relation.
                    Object::OBJECT_COLUMN
                    | Object::OBJECT_POLICY
                    | Object::OBJECT_RULE
                    | Object::OBJECT_TABCONSTRAINT
                    | Object::OBJECT_TRIGGER => {
                        parts.pop();
                        named(parts, What::Relation)
                    }
                    Object::OBJECT_FOREIGN_TABLE
                    | Object::OBJECT_INDEX
                    | Object::OBJECT_MATVIEW
                    | Object::OBJECT_SEQUENCE
                    | Object::OBJECT_TABLE
                    | Object::OBJECT_VIEW => named(parts, What::Relation),
                    // The first part is the access method.
                    Object::OBJECT_OPCLASS | Object::OBJECT_OPFAMILY => {
                        named(parts.into_iter().skip(1).collect(), What::Object)
                    }
                    _ => named(parts, What::Object),
                }
            }
            _ => None,
        }
    }
}

/// The target of a statement that names a schema alone.
///
/// # Safety
/// The name is null, or the parser returned it.
unsafe fn of_schema(name: *const c_char) -> Target {
    // SAFETY: the caller's promise.
    Target { schema: unsafe { text(name) }.map(owned), name: Vec::new(), what: What::New }
}

/// The target that a name of a relation means.
///
/// # Safety
/// The name is null, or the parser returned it.
unsafe fn named_by(relation: *mut pg_sys::RangeVar, what: What) -> Option<Target> {
    // SAFETY: the caller's promise.
    unsafe {
        let relation = relation.as_ref()?;
        let name = text(relation.relname).map(owned)?;
        Some(Target { schema: text(relation.schemaname).map(owned), name, what })
    }
}

/// The target that a qualified name means, given as a list of its parts.
///
/// # Safety
/// The list is null or of strings.
pub(super) unsafe fn parts(list: *mut pg_sys::List, what: What) -> Option<Target> {
    // SAFETY: the caller's promise.
    named(unsafe { names(list) }, what)
}

/// The target of these parts of a name. The last part is the name, and the part before it the schema.
fn named(mut parts: Vec<Vec<u8>>, what: What) -> Option<Target> {
    let name = parts.pop()?;
    Some(Target { schema: parts.pop(), name, what })
}

/// # Safety
/// The list is null or of strings.
unsafe fn names(list: *mut pg_sys::List) -> Vec<Vec<u8>> {
    // SAFETY: the caller's promise.
    unsafe { elements::<pg_sys::String>(list).filter_map(|part| text((*part).sval).map(owned)).collect() }
}

pub(super) fn owned(text: &CStr) -> Vec<u8> {
    text.to_bytes().to_vec()
}
