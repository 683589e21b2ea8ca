// Package photos inserts photos whose ids the server makes, by pgx.
package photos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgconn"
	"github.com/jackc/pgx/v4"
	"github.com/jackc/pgx/v4/pgxpool"
)

// Connect returns a pool of connections to the server of the environment.
func Connect(ctx context.Context) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig("")
	if err != nil {
		return nil, err
	}
	// PgBouncer before 1.21 knows nothing of prepared statements.
	config.ConnConfig.PreferSimpleProtocol = os.Getenv("POOLED") != ""
	return pgxpool.ConnectConfig(ctx, config)
}

// A Querier is a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, arguments ...interface{}) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, arguments ...interface{}) pgx.Row
}

// Insert returns the id of the new photo.
func Insert(ctx context.Context, db Querier, user int64) (id int64, err error) {
	err = db.QueryRow(ctx, "INSERT INTO photos (user_id) VALUES ($1) RETURNING id", user).Scan(&id)
	return id, err
}

// InsertMany returns the ids in the order of the users.
func InsertMany(ctx context.Context, db Querier, users []int64) ([]int64, error) {
	insert := "INSERT INTO photos (user_id) SELECT unnest($1::bigint[]) RETURNING id"
	return ids(db.Query(ctx, insert, users))
}

// Copy asks for the ids before, because COPY returns none. The transaction keeps both on one connection.
func Copy(ctx context.Context, pool *pgxpool.Pool, users []int64) (photos []int64, err error) {
	err = pool.BeginFunc(ctx, func(tx pgx.Tx) error {
		photos, err = ids(tx.Query(ctx, "SELECT next_ids(5, 'photos_id_seq', $1)", len(users)))
		if err != nil {
			return err
		}
		rows := pgx.CopyFromSlice(len(users), func(i int) ([]interface{}, error) {
			return []interface{}{photos[i], users[i]}, nil
		})
		_, err = tx.CopyFrom(ctx, pgx.Identifier{"photos"}, []string{"id", "user_id"}, rows)
		return err
	})
	return photos, err
}

// InsertInto returns the id of the new photo, which is in this shard.
func InsertInto(ctx context.Context, db Querier, shard int, user int64) (id int64, err error) {
	insert := fmt.Sprintf("INSERT INTO insta%d.photos (user_id) VALUES ($1) RETURNING id", shard)
	err = db.QueryRow(ctx, insert, user).Scan(&id)
	return id, err
}

// The SQLSTATEs of a server on which the shard is fenced or no longer exists. Nothing was written.
var moved = map[string]bool{"25006": true, "42P01": true, "3F000": true}

// Retry calls the function again while the shard moves. The function looks up the shard's server each time. Retry gives up after
// about the given time.
func Retry(ctx context.Context, limit time.Duration, do func() error) error {
	end := time.Now().Add(limit)
	for pause := 10 * time.Millisecond; ; pause *= 2 {
		err := do()
		var refused *pgconn.PgError
		if !errors.As(err, &refused) || !moved[refused.Code] || time.Now().Add(pause).After(end) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

func ids(rows pgx.Rows, err error) (ids []int64, _ error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}
