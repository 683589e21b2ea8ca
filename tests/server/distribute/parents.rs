//! A row goes with the row to which its key refers, whatever that goes by.

use support::{refused, texts};

use super::tables;

/// Members go by their organization, and all else with its member: a profile by the member's id, which is its own, notes by that profile.
const TABLES: &str = "
    CREATE TABLE orgs (id bigint PRIMARY KEY);
    CREATE TABLE members (id bigint PRIMARY KEY, org_id bigint NOT NULL REFERENCES orgs, email text NOT NULL UNIQUE, UNIQUE (org_id, id));
    CREATE TABLE profiles (member_id bigint PRIMARY KEY REFERENCES members);
    CREATE TABLE notes (id bigint PRIMARY KEY, member_id bigint NOT NULL REFERENCES profiles);
    CREATE TABLE bills (id bigint PRIMARY KEY, org_id bigint NOT NULL, member_id bigint NOT NULL);
    CREATE TABLE letters (id bigint PRIMARY KEY, email text NOT NULL);";

/// Only the tables that users start with have these.
const OTHER_KEYS: &str = "
    ALTER TABLE bills ADD FOREIGN KEY (org_id, member_id) REFERENCES members (org_id, id);
    ALTER TABLE letters ADD FOREIGN KEY (email) REFERENCES members (email);";

const ROWS: &str = "
    INSERT INTO orgs SELECT generate_series(1, 20);
    INSERT INTO members SELECT n, 1 + n % 20, 'm' || n FROM generate_series(1, 200) n;
    INSERT INTO profiles SELECT id FROM members;
    INSERT INTO notes SELECT n, 1 + n % 200 FROM generate_series(1, 500) n;
    INSERT INTO bills SELECT id, org_id, id FROM members;
    INSERT INTO letters SELECT id, email FROM members;";

const REGISTERED: &str = "
    SELECT insta_ids.distribute_table('notes', 'member_id');
    SELECT insta_ids.distribute_table('profiles', 'member_id');
    SELECT insta_ids.distribute_table('bills', 'org_id');
    SELECT insta_ids.distribute_table('members', 'org_id');
    SELECT insta_ids.distribute_table('orgs', 'id');";

#[test]
fn rows_go_with_the_row_to_which_their_key_refers() {
    let cluster = tables("distribute_parents");
    let mut client = cluster.connect();
    client.execute("SELECT insta_ids.add_migration('0002', $1)", &[&TABLES]).unwrap();
    client.batch_execute("CALL insta_ids.migrate()").unwrap();
    client.batch_execute(TABLES).unwrap();
    client.batch_execute(OTHER_KEYS).unwrap();
    client.batch_execute(ROWS).unwrap();
    client.batch_execute(REGISTERED).unwrap();

    // By another column, a letter would go to another shard than its reader.
    client.batch_execute("SELECT insta_ids.distribute_table('letters', 'email')").unwrap();
    let error = refused(&mut client, "CALL insta_ids.distribute()");
    assert_eq!(
        error.detail(),
        Some(
            "Foreign key \"letters_email_fkey\" of table public.letters refers to other columns of table public.members than the primary key, so its rows would go to other shards."
        )
    );
    client.batch_execute("DROP TABLE letters").unwrap();
    client.batch_execute(REGISTERED).unwrap();
    client.batch_execute("CALL insta_ids.distribute()").unwrap();
    assert_eq!(
        texts(
            &mut client,
            "SELECT concat_ws(' ', source, parent) FROM insta_ids.distributions ORDER BY source::text"
        ),
        ["bills", "members", "notes profiles", "orgs", "profiles members"]
    );
    // A member that goes to another organization takes all with it.
    client
        .batch_execute(
            "DELETE FROM bills WHERE member_id = 7; UPDATE members SET org_id = 1 + org_id % 20 WHERE id = 7",
        )
        .unwrap();
    client.batch_execute("CALL insta_ids.distribute()").unwrap();
    let strays = (0..super::SHARDS)
        .map(|shard| {
            format!(
                "SELECT 'member ' || id FROM insta{shard}.members WHERE insta_ids.shard_of(org_id) <> {shard}
                 UNION ALL SELECT 'bill ' || id FROM insta{shard}.bills WHERE insta_ids.shard_of(org_id) <> {shard}
                 UNION ALL SELECT 'profile ' || member_id FROM insta{shard}.profiles p
                     WHERE NOT EXISTS (SELECT FROM insta{shard}.members m WHERE m.id = p.member_id)
                 UNION ALL SELECT 'note ' || id FROM insta{shard}.notes n
                     WHERE NOT EXISTS (SELECT FROM insta{shard}.members m WHERE m.id = n.member_id)"
            )
        })
        .collect::<Vec<_>>()
        .join(" UNION ALL ");
    assert_eq!(texts(&mut client, &strays), [""; 0]);
}
