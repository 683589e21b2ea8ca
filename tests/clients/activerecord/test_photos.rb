require "minitest/autorun"
require_relative "photos"

ActiveRecord::Base.establish_connection(CONFIGURATION)
ActiveRecord::Migrator.migrations_paths = [File.join(__dir__, "migrate")]
ActiveRecord::Tasks::DatabaseTasks.migrate

# Both have connections of their own, in the tests that establish them.
class One < ActiveRecord::Base
  self.table_name = "photos"
end

class Other < ActiveRecord::Base
  self.table_name = "photos"
end

class PhotosTest < Minitest::Test
  @users = (1000..).each

  class << self
    attr_reader :users
  end

  def some_users(count)
    Array.new(count) { self.class.users.next }
  end

  def connection
    ActiveRecord::Base.connection
  end

  # These users have these ids, which are of this shard.
  def assert_stored(users, ids, shard: 5, table: "photos")
    assert_equal users.size, ids.uniq.size
    rows = connection.select_rows("SELECT user_id, id, id_shard(id) FROM #{table} WHERE user_id IN (#{users.join(', ')})")
    assert_equal users.zip(ids).map { |user, id| [user, id, shard] }.sort, rows.sort
  end

  def assert_refused(with, &block)
    error = assert_raises(ActiveRecord::StatementInvalid, &block)
    assert_kind_of with, error.cause
    error.cause
  end

  def with_connections(**options)
    [One, Other].each { |model| model.establish_connection(CONFIGURATION.merge(options)) }
    yield
  ensure
    [One, Other].each(&:remove_connection)
  end

  # Since 1.24, PgBouncer keeps track of prepared statements by default.
  def loses_prepared_statements?
    return false unless POOLED

    version = PG.connect(dbname: "pgbouncer") { |console| console.exec("SHOW VERSION").getvalue(0, 0) }
    Gem::Version.new(version.delete_prefix("PgBouncer ")) < Gem::Version.new("1.24")
  end

  def test_create
    users = some_users(20)
    ids = users.map { |user| Photo.create!(user_id: user).id }
    assert_stored users, ids
    assert(ids.all? { |id| id >> 10 & 8191 == 5 })
    assert_equal users.first, Photo.find(ids.first).user_id
  end

  def test_many
    users = some_users(3000)
    assert_stored users, Photo.insert_many(users)
  end

  def test_many_with_ids
    users = some_users(3000)
    ids = Photo.next_ids(users.size)
    Photo.insert_all!(ids.zip(users).map { |id, user| { id: id, user_id: user } })
    assert_stored users, ids
  end

  def test_threads
    users = some_users(20)
    ids = users.each_slice(5).map do |slice|
      Thread.new do
        ActiveRecord::Base.connection_pool.with_connection { slice.map { |user| Photo.create!(user_id: user).id } }
      end
    end.flat_map(&:value)
    assert_stored users, ids
  end

  def test_shards
    # User 1004 is of shard 1004 % 8.
    users = [1004, 1005, 1012, 1013]
    ids = users.map { |user| Post.on_shard(Post.shard_of(user)) { Post.create!(user_id: user) }.id }
    # ActiveRecord prepares this once, and the prepared statement follows the search_path from shard to shard.
    assert_equal users, users.zip(ids).map { |user, id| Post.on_shard(Post.shard_of(user)) { Post.find(id).user_id } }
    assert_stored users.values_at(0, 2), ids.values_at(0, 2), shard: 4, table: "insta4.posts"
    assert_stored users.values_at(1, 3), ids.values_at(1, 3), shard: 5, table: "insta5.posts"

    many = some_users(3000)
    ids = Post.on_shard(3) { Post.insert_all!(many.map { |user| { user_id: user } }, returning: :id).pluck("id") }
    assert_stored many, ids, shard: 3, table: "insta3.posts"
  end

  def test_outside_of_shards
    Post.on_shard(0) { Post.create!(user_id: 0) }
    # Nothing that was set stays.
    5.times { assert_refused(PG::UndefinedTable) { Post.where(user_id: 0).to_a } }
    assert_equal '"$user", public', connection.select_value("SHOW search_path")
    ActiveRecord::Base.transaction do
      assert_match(/open already/, assert_raises(RuntimeError) { Post.on_shard(0) { flunk } }.message)
    end
  end

  def test_first_used_outside_of_shards
    connection.schema_cache.clear!
    model = Class.new(ShardRecord) { self.table_name = "posts" }
    assert_refused(PG::UndefinedTable) { model.find(1) }
    users = some_users(2)
    ids = model.on_shard(0) { model.insert_all!([{ user_id: users[0] }], returning: :id).pluck("id") }
    ids << model.on_shard(0) { model.create!(user_id: users[1]) }.id
    assert_stored users, ids, shard: 0, table: "insta0.posts"
  end

  # Rails switches the query cache on for each request.
  def test_query_cache
    ActiveRecord::Base.cache do
      Post.on_shard(0) { Post.create!(user_id: 8) }
      assert Post.on_shard(0) { Post.exists?(user_id: 8) }
      refute Post.on_shard(1) { Post.exists?(user_id: 8) }
    end
  end

  def test_errors
    id = connection.select_value("SELECT insta5.next_id()")
    error = assert_refused(PG::CheckViolation) { Post.on_shard(4) { Post.create!(id: id, user_id: 4) } }
    assert_equal "23514", error.result.error_field(PG::PG_DIAG_SQLSTATE)
    # The map has shard 6 on the other server.
    assert_refused(PG::UndefinedTable) { Post.on_shard(6) { Post.create!(user_id: 6) } }
    error = assert_refused(PG::ReadOnlySqlTransaction) { connection.execute("SELECT next_id(6, 'photos_id_seq')") }
    assert_equal "25006", error.result.error_field(PG::PG_DIAG_SQLSTATE)
  end

  def test_retry
    connection.execute("SELECT insta_ids.fence(2)")
    users = some_users(1)
    post = Post.on_shard(1) { Post.new(user_id: users.first) }
    tries = 0
    save = lambda do
      tries += 1
      Post.on_shard(2) { post.save! }
    end
    assert_refused(PG::ReadOnlySqlTransaction) { Post.with_retry(limit: 0.1, &save) }
    assert_operator tries, :>, 1
    assert post.new_record?

    tries = 0
    opener = Thread.new do
      sleep 0.5
      ActiveRecord::Base.connection_pool.with_connection { |other| other.execute("SELECT insta_ids.unfence(2)") }
    end
    Post.with_retry(&save)
    opener.join
    assert_operator tries, :>, 1
    assert_stored users, [post.id], shard: 2, table: "insta2.posts"
  end

  def test_no_retry_of_other_errors
    tries = 0
    assert_refused(PG::DivisionByZero) { Post.with_retry { connection.execute("SELECT #{tries += 1} / 0") } }
    assert_equal 1, tries
  end

  def test_json
    id = Photo.create!(user_id: some_users(1).first).id
    assert_operator id, :>, 2**53
    refute_equal id, id.to_f.to_i
    assert_equal id.to_s, JSON.parse(Photo.find(id).to_json)["id"]
    # As it comes back with a request.
    assert_equal id, Photo.find(id.to_s).id
    assert_raises(ActiveRecord::RecordNotFound) { Photo.find(2**63) }
  end

  # db/schema.rb has the default, and not its sequence.
  def test_schema
    schema = StringIO.new
    ActiveRecord::SchemaDumper.dump(connection, schema)
    default = %q[create_table "photos", id: :bigint, default: -> { "next_id(5, 'photos_id_seq'::regclass)" }]
    assert_includes schema.string, default
    assert_includes schema.string, 'enable_extension "insta_ids"'
    refute_match(/sequence/i, schema.string)
  end

  # Fixtures set the sequence that the column owns to the greatest id.
  def test_sequence
    assert_equal "public.photos_id_seq", Photo.sequence_name
    users = some_users(40)
    ids = Photo.insert_many(users[0...20])
    connection.reset_pk_sequence!("photos")
    assert_operator connection.select_value("SELECT last_value FROM photos_id_seq"), :>=, ids.max
    assert_stored users, ids + Photo.insert_many(users[20..])
  end

  # Without RETURNING, ActiveRecord takes the sequence's value for the id.
  def test_insert_returning
    with_connections(insert_returning: false) do
      user = some_users(1).first
      One.transaction { refute_equal One.create!(user_id: user).id, One.find_by!(user_id: user).id }
    end
  end

  def test_prepared_statements
    users = some_users(20)
    ids = Photo.insert_many(users)
    read = -> { users.each_with_index.map { |user, i| (i.even? ? One : Other).find_by!(user_id: user).id } }
    with_connections { assert_equal ids, read.call }

    if loses_prepared_statements?
      assert_wrong_answers
      # Statements of all connections have the same names, and stay on the server.
      with_connections(prepared_statements: true) { assert_refused(PG::DuplicatePstatement, &read) }
    else
      with_connections(prepared_statements: true) { assert_equal ids, read.call }
    end
  end

  # One and Other prepare under the same name in two connections of the server. Then One executes what Other has prepared,
  # and takes a user for an id.
  def assert_wrong_answers
    user = some_users(1).first
    Photo.create!(user_id: user)
    with_connections(prepared_statements: true) do
      ids = -> { One.where(user_id: user).pluck(:id) }
      refute_equal [user], ids.call
      in_another_connection { Other.where(user_id: user).pluck(:user_id) }
      in_another_connection { assert_equal [user], ids.call }
    end
  end

  # The transaction holds the connection that PgBouncer used last.
  def in_another_connection
    Photo.transaction do
      Photo.connection.execute("SELECT 1")
      yield
    end
  end

  # Other clients of PgBouncer have what was set for a session.
  def test_schema_search_path
    with_connections do
      One.establish_connection(CONFIGURATION.merge(schema_search_path: "insta4, public"))
      One.connection
      assert_equal POOLED ? "insta4, public" : '"$user", public', Other.connection.select_value("SHOW search_path")
      One.connection.execute("RESET search_path")
    end
  end
end
