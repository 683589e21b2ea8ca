//! Makes the tables.

use photos::with_sqlx::{connect, migrate};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    migrate(&connect().await?).await?;
    Ok(())
}
