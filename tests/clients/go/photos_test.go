package photos

import (
	"context"
	"errors"
	"log"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgconn"
	"github.com/jackc/pgx/v4/pgxpool"
)

var (
	ctx  = context.Background()
	pool *pgxpool.Pool
)

func TestMain(m *testing.M) {
	var err error
	if pool, err = Connect(ctx); err != nil {
		log.Fatal(err)
	}
	for _, statement := range []string{
		"CREATE SEQUENCE photos_id_seq",
		"CREATE TABLE photos (id bigint PRIMARY KEY DEFAULT next_id(5, 'photos_id_seq'), user_id bigint NOT NULL)",
		"SELECT insta_ids.init(8)",
		"SELECT insta_ids.add_node('a', 'host=a dbname=app'), insta_ids.add_node('b', 'host=b dbname=app')",
		"SELECT insta_ids.assign(0, 5, 'a'), insta_ids.assign(6, 7, 'b')",
		`SELECT insta_ids.add_migration('0001 photos', $$
			CREATE TABLE photos (id bigint PRIMARY KEY DEFAULT next_id(), user_id bigint NOT NULL)
		$$)`,
		"CALL insta_ids.create_shards(0, 7)",
	} {
		if _, err := pool.Exec(ctx, statement); err != nil {
			log.Fatal(statement, ": ", err)
		}
	}
	os.Exit(m.Run())
}

// try fails the test at an error.
func try(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// someUsers are users that no other test has.
func someUsers(count int) []int64 {
	users := make([]int64, count)
	for i := range users {
		nextUser++
		users[i] = nextUser
	}
	return users
}

var nextUser int64 = 1000

// stored fails unless these users have these ids, which are of this shard.
func stored(t *testing.T, table string, shard int, users, ids []int64) {
	t.Helper()
	if len(ids) != len(users) {
		t.Fatalf("%d ids for %d users", len(ids), len(users))
	}
	photos := map[int64]int64{}
	for i, id := range ids {
		photos[id] = users[i]
	}
	rows, err := pool.Query(ctx, "SELECT id, user_id, id_shard(id) FROM "+table+" WHERE user_id = ANY($1)", users)
	try(t, err)
	defer rows.Close()
	for rows.Next() {
		var id, user int64
		var of int
		try(t, rows.Scan(&id, &user, &of))
		if photos[id] != user || of != shard {
			t.Errorf("photo %d of user %d is in shard %d", id, user, of)
		}
		delete(photos, id)
	}
	try(t, rows.Err())
	if len(photos) > 0 {
		t.Errorf("%d photos are not stored", len(photos))
	}
}

func TestReturning(t *testing.T) {
	users := someUsers(20)
	var ids []int64
	for _, user := range users {
		id, err := Insert(ctx, pool, user)
		try(t, err)
		if id>>10&8191 != 5 {
			t.Errorf("id %d is not of shard 5", id)
		}
		ids = append(ids, id)
	}
	stored(t, "photos", 5, users, ids)
}

func TestMany(t *testing.T) {
	users := someUsers(3000)
	ids, err := InsertMany(ctx, pool, users)
	try(t, err)
	stored(t, "photos", 5, users, ids)
}

func TestCopy(t *testing.T) {
	users := someUsers(3000)
	ids, err := Copy(ctx, pool, users)
	try(t, err)
	stored(t, "photos", 5, users, ids)
}

func TestManySessions(t *testing.T) {
	users := someUsers(500)
	ids := make([]int64, len(users))
	errs := make([]error, len(users))
	var wait sync.WaitGroup
	for i := range users {
		wait.Add(1)
		go func(i int) {
			defer wait.Done()
			ids[i], errs[i] = Insert(ctx, pool, users[i])
		}(i)
	}
	wait.Wait()
	for _, err := range errs {
		try(t, err)
	}
	stored(t, "photos", 5, users, ids)
}

func TestShards(t *testing.T) {
	users := someUsers(1)
	id, err := InsertInto(ctx, pool, 4, users[0])
	try(t, err)
	stored(t, "insta4.photos", 4, users, []int64{id})
}

// refused fails unless the error has this SQLSTATE.
func refused(t *testing.T, err error, code string) {
	t.Helper()
	var refusal *pgconn.PgError
	if !errors.As(err, &refusal) || refusal.Code != code {
		t.Fatalf("%v is not %s", err, code)
	}
}

func TestErrors(t *testing.T) {
	var id int64
	try(t, pool.QueryRow(ctx, "SELECT insta5.next_id()").Scan(&id))
	_, err := pool.Exec(ctx, "INSERT INTO insta4.photos (id, user_id) VALUES ($1, 4)", id)
	refused(t, err, "23514")
	_, err = InsertInto(ctx, pool, 6, 4)
	refused(t, err, "42P01")
	refused(t, pool.QueryRow(ctx, "SELECT next_id(6, 'photos_id_seq')").Scan(&id), "25006")
}

func TestRetry(t *testing.T) {
	users := someUsers(1)
	var id int64
	tries := 0
	insert := func() (err error) {
		tries++
		id, err = InsertInto(ctx, pool, 2, users[0])
		return err
	}
	_, err := pool.Exec(ctx, "SELECT insta_ids.fence(2)")
	try(t, err)
	refused(t, Retry(ctx, 100*time.Millisecond, insert), "25006")

	tries = 0
	opened := make(chan error, 1)
	time.AfterFunc(500*time.Millisecond, func() {
		_, err := pool.Exec(ctx, "SELECT insta_ids.unfence(2)")
		opened <- err
	})
	try(t, Retry(ctx, 10*time.Second, insert))
	try(t, <-opened)
	if tries < 2 {
		t.Errorf("only %d tries", tries)
	}
	stored(t, "insta2.photos", 2, users, []int64{id})

	tries = 0
	failure := errors.New("another error")
	if err := Retry(ctx, 10*time.Second, func() error { tries++; return failure }); err != failure || tries != 1 {
		t.Errorf("%v after %d tries", err, tries)
	}
}
