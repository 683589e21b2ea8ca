//! sqlx. All of this works through PgBouncer, too.

use sqlx::migrate::MigrateError;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{Connection, Error};

/// PgBouncer refuses `extra_float_digits`, unless its `ignore_startup_parameters` has it.
pub async fn connect() -> Result<PgPool, Error> {
    let options = PgConnectOptions::new().extra_float_digits(None);
    PgPoolOptions::new().max_connections(8).connect_with(options).await
}

/// In one transaction, with nothing left prepared.
pub async fn migrate(pool: &PgPool) -> Result<(), MigrateError> {
    let mut transaction = pool.begin().await?;
    sqlx::migrate!().run(&mut *transaction).await?;
    transaction.clear_cached_statements().await?;
    transaction.commit().await?;
    Ok(())
}

pub async fn insert(pool: &PgPool, user: i64) -> Result<i64, Error> {
    let mut transaction = pool.begin().await?;
    let id = sqlx::query_scalar("INSERT INTO photos (user_id) VALUES ($1) RETURNING id")
        .bind(user)
        .persistent(false)
        .fetch_one(&mut *transaction)
        .await?;
    transaction.commit().await?;
    Ok(id)
}

pub async fn insert_many(pool: &PgPool, users: &[i64]) -> Result<Vec<i64>, Error> {
    let mut transaction = pool.begin().await?;
    let ids = sqlx::query_scalar("INSERT INTO photos (user_id) SELECT unnest($1::bigint[]) RETURNING id")
        .bind(users)
        .persistent(false)
        .fetch_all(&mut *transaction)
        .await?;
    transaction.commit().await?;
    Ok(ids)
}
