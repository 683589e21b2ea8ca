SELECT insta_ids.init(64);
--> statement-breakpoint
SELECT insta_ids.add_migration('0001 photos', $$
    CREATE TABLE photos (id bigint PRIMARY KEY DEFAULT next_id(), user_id bigint NOT NULL)
$$);
--> statement-breakpoint
SELECT insta_ids.create_shard(n) FROM generate_series(0, 7) n;
