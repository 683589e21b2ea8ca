//! tokio-postgres. All of this works through PgBouncer, too.

use std::pin::pin;

use tokio_postgres::binary_copy::BinaryCopyInWriter;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Config, Error, NoTls};

/// A session where the variables of libpq lead to.
pub async fn connect() -> Result<Client, Error> {
    let mut config = Config::new();
    for (name, value) in std::env::vars() {
        match name.as_str() {
            "PGHOST" => config.host(value),
            "PGPORT" => config.port(value.parse().expect("PGPORT is a number")),
            "PGUSER" => config.user(value),
            "PGDATABASE" => config.dbname(value),
            _ => &mut config,
        };
    }
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

pub async fn insert(client: &Client, user: i64) -> Result<i64, Error> {
    let insert = "INSERT INTO photos (user_id) VALUES ($1) RETURNING id";
    Ok(client.query_typed_one(insert, &[(&user, Type::INT8)]).await?.get("id"))
}

pub async fn insert_many(client: &Client, users: &[i64]) -> Result<Vec<i64>, Error> {
    let insert = "INSERT INTO photos (user_id) SELECT unnest($1::bigint[]) RETURNING id";
    let rows = client.query_typed(insert, &[(&users, Type::INT8_ARRAY)]).await?;
    Ok(rows.iter().map(|row| row.get("id")).collect())
}

/// COPY returns no ids, so they are minted before; by `query_typed`, as the rows outlive the transaction.
pub async fn copy(client: &mut Client, users: &[i64]) -> Result<Vec<i64>, Error> {
    let count = i32::try_from(users.len()).expect("fewer rows");
    let transaction = client.transaction().await?;
    let mint = "SELECT next_ids(5, 'photos_id_seq', $1)";
    let rows = transaction.query_typed(mint, &[(&count, Type::INT4)]).await?;
    let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();

    let sink = transaction.copy_in("COPY photos (id, user_id) FROM STDIN (FORMAT binary)").await?;
    let mut writer = pin!(BinaryCopyInWriter::new(sink, &[Type::INT8, Type::INT8]));
    for (id, user) in ids.iter().zip(users) {
        writer.as_mut().write(&[id, user]).await?;
    }
    writer.finish().await?;
    transaction.commit().await?;
    Ok(ids)
}

/// What is prepared in a transaction is used in it and dropped before its end, and so is each row that it returned.
pub async fn insert_prepared(client: &mut Client, users: &[i64]) -> Result<Vec<i64>, Error> {
    let mut ids = Vec::new();
    let transaction = client.transaction().await?;
    let insert = transaction.prepare("INSERT INTO photos (user_id) VALUES ($1) RETURNING id").await?;
    for user in users {
        ids.push(transaction.query_one(&insert, &[user]).await?.get("id"));
    }
    drop(insert);
    transaction.commit().await?;
    Ok(ids)
}
