//! sqlx: ids are `i64`.

use photos::with_sqlx::{connect, insert, insert_many, migrate};
use photos::{pooled, shard_of};
use sqlx::{AssertSqlSafe, PgPool, Result};
use tokio::task::JoinSet;

/// Fails unless these rows are there, all of shard 5, with ids that increase.
async fn stored(pool: &PgPool, ids: &[i64], users: &[i64]) -> Result<()> {
    let mut transaction = pool.begin().await?;
    let select = "SELECT id, user_id, id_shard(id) FROM photos WHERE id = ANY($1) ORDER BY id";
    let found: Vec<(i64, i64, i32)> =
        sqlx::query_as(select).bind(ids).persistent(false).fetch_all(&mut *transaction).await?;
    let told: Vec<_> = ids.iter().zip(users).map(|(id, user)| (*id, *user, 5)).collect();
    assert_eq!(found, told);
    assert_eq!(found.len(), users.len());
    assert!(ids.is_sorted_by(|a, b| a < b) && ids.iter().all(|id| shard_of(*id) == 5));
    transaction.commit().await
}

#[tokio::test]
async fn one() -> Result<()> {
    let pool = connect().await?;
    let id = insert(&pool, 31341).await?;
    stored(&pool, &[id], &[31341]).await
}

#[tokio::test]
async fn many() -> Result<()> {
    let pool = connect().await?;
    let users: Vec<i64> = (0..5000).collect();
    let ids = insert_many(&pool, &users).await?;
    stored(&pool, &ids, &users).await
}

/// COPY is of text here, and without ids.
#[tokio::test]
async fn copy() -> Result<()> {
    let pool = connect().await?;
    let mut transaction = pool.begin().await?;
    let mut copy = transaction.copy_in_raw("COPY insta3.photos (user_id) FROM STDIN").await?;
    let users: String = (0..1000).map(|user| format!("{user}\n")).collect();
    copy.send(users.as_bytes()).await?;
    assert_eq!(copy.finish().await?, 1000);
    let select = "SELECT count(DISTINCT id) FROM insta3.photos WHERE id_shard(id) = 3";
    let count: i64 = sqlx::query_scalar(select).persistent(false).fetch_one(&mut *transaction).await?;
    assert_eq!(count, 1000);
    transaction.commit().await
}

/// Through PgBouncer, each transaction has another session of the server: what one client sends must not be what
/// another has executed, so they send different ones.
#[tokio::test]
async fn sessions() -> Result<()> {
    let pool = connect().await?;
    let mut sessions = JoinSet::new();
    for session in 0..8 {
        let pool = pool.clone();
        sessions.spawn(async move {
            let shard = session % 2 + 6;
            let insert = format!("INSERT INTO insta{shard}.photos (user_id) VALUES ($1) RETURNING id");
            let mut ids = Vec::new();
            for user in 1000_i64..1200 {
                let insert = sqlx::query_scalar(AssertSqlSafe(insert.as_str())).bind(user);
                let id: i64 = if pooled() {
                    let mut transaction = pool.begin().await?;
                    let id = insert.persistent(false).fetch_one(&mut *transaction).await?;
                    transaction.commit().await?;
                    id
                } else {
                    insert.fetch_one(&pool).await?
                };
                assert_eq!(shard_of(id), shard);
                ids.push(id);
            }
            Ok(ids)
        });
    }
    let ids: Vec<i64> = sessions.join_all().await.into_iter().collect::<Result<Vec<_>>>()?.concat();
    let mut transaction = pool.begin().await?;
    let select =
        "SELECT DISTINCT id FROM insta6.photos FULL JOIN insta7.photos USING (id) WHERE id = ANY($1)";
    let found: Vec<i64> =
        sqlx::query_scalar(select).bind(&ids).persistent(false).fetch_all(&mut *transaction).await?;
    assert_eq!(found.len(), 1600);
    transaction.commit().await
}

#[tokio::test]
async fn refused() -> Result<()> {
    let code = |error: sqlx::Error| error.as_database_error()?.code().map(String::from);
    let pool = connect().await?;
    let insert = "INSERT INTO photos SELECT next_id(6, 'photos_id_seq'), 1";
    let error = sqlx::raw_sql(insert).execute(&pool).await.unwrap_err();
    assert!(error.as_database_error().is_some_and(|error| error.is_check_violation()));
    assert_eq!(code(error).as_deref(), Some("23514"));

    let insert = "INSERT INTO insta4.photos (user_id) VALUES (1)";
    sqlx::raw_sql(insert).execute(&pool).await?;
    sqlx::raw_sql("SELECT insta_ids.fence(4)").execute(&pool).await?;
    let error = sqlx::raw_sql(insert).execute(&pool).await.unwrap_err();
    assert_eq!(code(error).as_deref(), Some("25006"));
    // It can be read as before.
    let rows = sqlx::raw_sql("SELECT FROM insta4.photos WHERE id_shard(id) = 4").fetch_all(&pool).await?;
    assert_eq!(rows.len(), 1);
    Ok(())
}

/// Another start of the application finds nothing to do.
#[tokio::test]
async fn migrations() -> Result<()> {
    for _ in 0..5 {
        let pool = connect().await?;
        migrate(&pool).await.expect("as it was");
        let rows = sqlx::raw_sql("SELECT FROM _sqlx_migrations WHERE success").fetch_all(&pool).await?;
        assert_eq!(rows.len(), 2);
    }
    Ok(())
}
