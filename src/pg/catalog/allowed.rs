//! Which statements a migration can contain.

use pgrx::pg_sys::{self, NodeTag, ObjectType};

use super::nodes::{elements, node, text};
use crate::shard::dump::SHARD;

/// Whether a migration can contain the statement: it is about rows, or about objects that belong to a schema. The list is of what is
/// allowed, so a statement of a newer PostgreSQL is refused until it is listed here. Settings and transactions are not asked about here.
///
/// # Safety
/// The parser returned the statement.
pub(super) unsafe fn is_allowed(statement: *mut pg_sys::Node) -> bool {
    use NodeTag as Tag;
    // SAFETY: each node has the type that its tag says. The caller keeps the rest.
    unsafe {
        match (*statement).type_ {
            tag if is_about_schema(tag) => true,
            // Objects of a schema, or of the whole database.
            Tag::T_DropStmt => is_of_schema(node::<pg_sys::DropStmt>(statement).removeType),
            Tag::T_RenameStmt => is_of_schema(node::<pg_sys::RenameStmt>(statement).renameType),
            Tag::T_AlterOwnerStmt => is_of_schema(node::<pg_sys::AlterOwnerStmt>(statement).objectType),
            Tag::T_AlterObjectSchemaStmt => {
                is_of_schema(node::<pg_sys::AlterObjectSchemaStmt>(statement).objectType)
            }
            Tag::T_AlterObjectDependsStmt => {
                is_of_schema(node::<pg_sys::AlterObjectDependsStmt>(statement).objectType)
            }
            Tag::T_CommentStmt => is_of_schema(node::<pg_sys::CommentStmt>(statement).objtype),
            Tag::T_SecLabelStmt => is_of_schema(node::<pg_sys::SecLabelStmt>(statement).objtype),
            Tag::T_GrantStmt => {
                let grant = node::<pg_sys::GrantStmt>(statement);
                let mut objects = elements::<pg_sys::String>(grant.objects);
                let is_of_shards = grant.objtype == ObjectType::OBJECT_SCHEMA
                    && objects.all(|name| text((*name).sval).is_some_and(|name| name.to_bytes() == SHARD));
                grant.targtype == pg_sys::GrantTargetType::ACL_TARGET_OBJECT
                    && (is_of_schema(grant.objtype) || is_of_shards)
            }
            Tag::T_ReindexStmt => {
                use pg_sys::ReindexObjectType::{REINDEX_OBJECT_INDEX, REINDEX_OBJECT_TABLE};
                let kind = node::<pg_sys::ReindexStmt>(statement).kind;
                kind == REINDEX_OBJECT_INDEX || kind == REINDEX_OBJECT_TABLE
            }
            // ANALYZE of tables. Without a table it is about the whole database.
            Tag::T_VacuumStmt => {
                let vacuum = node::<pg_sys::VacuumStmt>(statement);
                !vacuum.is_vacuumcmd && !vacuum.rels.is_null()
            }
            _ => false,
        }
    }
}

/// Whether all statements of this kind are about rows, or about objects that belong to a schema.
fn is_about_schema(tag: NodeTag) -> bool {
    use NodeTag as Tag;
    matches!(
        tag,
        // Rows.
        Tag::T_SelectStmt
        | Tag::T_InsertStmt
        | Tag::T_UpdateStmt
        | Tag::T_DeleteStmt
        | Tag::T_MergeStmt
        | Tag::T_TruncateStmt
        | Tag::T_CallStmt
        | Tag::T_DoStmt
        | Tag::T_LockStmt
        | Tag::T_ConstraintsSetStmt
        | Tag::T_VariableSetStmt
        // Tables, views and sequences.
        | Tag::T_CreateStmt
        | Tag::T_CreateForeignTableStmt
        | Tag::T_CreateTableAsStmt
        | Tag::T_RefreshMatViewStmt
        | Tag::T_ViewStmt
        | Tag::T_CreateSeqStmt
        | Tag::T_AlterSeqStmt
        | Tag::T_AlterTableStmt
        | Tag::T_IndexStmt
        | Tag::T_CreateStatsStmt
        | Tag::T_AlterStatsStmt
        | Tag::T_CreateTrigStmt
        | Tag::T_CreatePolicyStmt
        | Tag::T_AlterPolicyStmt
        | Tag::T_RuleStmt
        // Types, functions and operators.
        | Tag::T_CompositeTypeStmt
        | Tag::T_CreateEnumStmt
        | Tag::T_AlterEnumStmt
        | Tag::T_CreateRangeStmt
        | Tag::T_CreateDomainStmt
        | Tag::T_AlterDomainStmt
        | Tag::T_AlterTypeStmt
        | Tag::T_DefineStmt
        | Tag::T_AlterCollationStmt
        | Tag::T_AlterTSDictionaryStmt
        | Tag::T_AlterTSConfigurationStmt
        | Tag::T_CreateFunctionStmt
        | Tag::T_AlterFunctionStmt
        | Tag::T_AlterOperatorStmt
        | Tag::T_CreateOpClassStmt
        | Tag::T_CreateOpFamilyStmt
        | Tag::T_AlterOpFamilyStmt
    )
}

/// Whether objects of this type belong to a schema, or are parts of objects that do.
fn is_of_schema(object: ObjectType::Type) -> bool {
    use ObjectType as Object;
    matches!(
        object,
        Object::OBJECT_AGGREGATE
            | Object::OBJECT_ATTRIBUTE
            | Object::OBJECT_COLLATION
            | Object::OBJECT_COLUMN
            | Object::OBJECT_CONVERSION
            | Object::OBJECT_DEFAULT
            | Object::OBJECT_DOMAIN
            | Object::OBJECT_DOMCONSTRAINT
            | Object::OBJECT_FOREIGN_TABLE
            | Object::OBJECT_FUNCTION
            | Object::OBJECT_INDEX
            | Object::OBJECT_MATVIEW
            | Object::OBJECT_OPCLASS
            | Object::OBJECT_OPERATOR
            | Object::OBJECT_OPFAMILY
            | Object::OBJECT_POLICY
            | Object::OBJECT_PROCEDURE
            | Object::OBJECT_ROUTINE
            | Object::OBJECT_RULE
            | Object::OBJECT_SEQUENCE
            | Object::OBJECT_STATISTIC_EXT
            | Object::OBJECT_TABCONSTRAINT
            | Object::OBJECT_TABLE
            | Object::OBJECT_TRIGGER
            | Object::OBJECT_TSCONFIGURATION
            | Object::OBJECT_TSDICTIONARY
            | Object::OBJECT_TSPARSER
            | Object::OBJECT_TSTEMPLATE
            | Object::OBJECT_TYPE
            | Object::OBJECT_VIEW
    )
}
