//! tokio-postgres: ids are `i64`.

use std::error::Error;
use std::pin::pin;

use photos::with_tokio_postgres::{connect, copy, insert, insert_many, insert_prepared};
use photos::{pooled, shard_of};
use tokio::task::JoinSet;
use tokio_postgres::Client;
use tokio_postgres::binary_copy::BinaryCopyInWriter;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Fails unless these rows are there, all of shard 5, with ids that increase.
async fn stored(client: &Client, ids: &[i64], users: &[i64]) -> Result<()> {
    let select = "SELECT id, user_id, id_shard(id) FROM photos WHERE id = ANY($1) ORDER BY id";
    let rows = client.query_typed(select, &[(&ids, Type::INT8_ARRAY)]).await?;
    let found = rows.iter().map(|row| (row.get(0), row.get(1), row.get(2)));
    assert!(found.eq(ids.iter().zip(users).map(|(id, user)| (*id, *user, 5))));
    assert_eq!(rows.len(), users.len());
    assert!(ids.is_sorted_by(|a, b| a < b) && ids.iter().all(|id| shard_of(*id) == 5));
    Ok(())
}

#[tokio::test]
async fn one() -> Result<()> {
    let client = connect().await?;
    let id = insert(&client, 31341).await?;
    stored(&client, &[id], &[31341]).await
}

#[tokio::test]
async fn many() -> Result<()> {
    let users: Vec<i64> = (0..5000).collect();
    let mut client = connect().await?;
    let ids = insert_many(&client, &users).await?;
    stored(&client, &ids, &users).await?;
    let ids = copy(&mut client, &users).await?;
    stored(&client, &ids, &users).await?;
    let ids = insert_prepared(&mut client, &users[..100]).await?;
    stored(&client, &ids, &users[..100]).await
}

#[tokio::test]
async fn copy_without_ids() -> Result<()> {
    let mut client = connect().await?;
    let transaction = client.transaction().await?;
    let sink = transaction.copy_in("COPY insta1.photos (user_id) FROM STDIN (FORMAT binary)").await?;
    let mut writer = pin!(BinaryCopyInWriter::new(sink, &[Type::INT8]));
    for user in 0_i64..1000 {
        writer.as_mut().write(&[&user]).await?;
    }
    assert_eq!(writer.finish().await?, 1000);
    transaction.commit().await?;
    let select = "SELECT count(DISTINCT id) FROM insta1.photos WHERE id_shard(id) = 1";
    assert_eq!(client.query_typed_one(select, &[]).await?.get::<_, i64>(0), 1000);
    Ok(())
}

/// Through PgBouncer, each statement has another session of the server: what one client sends must not be what another
/// has executed, so they send different ones.
#[tokio::test]
async fn sessions() -> Result<()> {
    let mut sessions = JoinSet::new();
    for session in 0..8 {
        sessions.spawn(async move {
            let shard = session % 2 + 6;
            let insert = format!("INSERT INTO insta{shard}.photos (user_id) VALUES ($1) RETURNING id");
            let client = connect().await?;
            let prepared = if pooled() { None } else { Some(client.prepare(&insert).await?) };
            let mut ids = Vec::new();
            for user in 0_i64..200 {
                let row = match &prepared {
                    Some(prepared) => client.query_one(prepared, &[&user]).await?,
                    None => client.query_typed_one(&insert, &[(&user, Type::INT8)]).await?,
                };
                ids.push(row.get(0));
                assert_eq!(shard_of(row.get(0)), shard);
            }
            Ok::<Vec<i64>, tokio_postgres::Error>(ids)
        });
    }
    let ids: Vec<i64> =
        sessions.join_all().await.into_iter().collect::<std::result::Result<Vec<_>, _>>()?.concat();
    let select =
        "SELECT DISTINCT id FROM insta6.photos FULL JOIN insta7.photos USING (id) WHERE id = ANY($1)";
    let rows = connect().await?.query_typed(select, &[(&ids, Type::INT8_ARRAY)]).await?;
    assert_eq!(rows.len(), 1600);
    Ok(())
}

#[tokio::test]
async fn refused() -> Result<()> {
    let client = connect().await?;
    let other: i64 = client.query_typed_one("SELECT next_id(6, 'photos_id_seq')", &[]).await?.get(0);
    let insert = "INSERT INTO photos VALUES ($1, 1)";
    let error = client.execute_typed(insert, &[(&other, Type::INT8)]).await.unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::CHECK_VIOLATION));

    let insert = "INSERT INTO insta2.photos (user_id) VALUES (1) RETURNING id";
    let id: i64 = client.query_typed_one(insert, &[]).await?.get(0);
    assert_eq!(shard_of(id), 2);
    client.batch_execute("SELECT insta_ids.fence(2)").await?;
    let error = client.query_typed_one(insert, &[]).await.unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::READ_ONLY_SQL_TRANSACTION));
    // It can be read as before.
    let row = client.query_typed_one("SELECT id FROM insta2.photos", &[]).await?;
    assert_eq!(row.get::<_, i64>(0), id);
    Ok(())
}
