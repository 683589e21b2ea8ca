# Photos whose ids the server makes, by ActiveRecord.

require "active_record"
require "pg"

POOLED = !ENV.fetch("POOLED", "").empty?

# PgBouncer before 1.21 knows nothing of prepared statements. In transaction mode, the lock that migrations take for their
# session can end up with another client.
CONFIGURATION = { adapter: "postgresql", prepared_statements: !POOLED, advisory_locks: !POOLED }.freeze

class Photo < ActiveRecord::Base
  # JavaScript would round a number.
  def as_json(*)
    super.tap { |json| json["id"] = json["id"].to_s if json.key?("id") }
  end

  # Returns the ids in the order of the users.
  def self.insert_many(users)
    insert_all!(users.map { |user| { user_id: user } }, returning: :id).pluck("id")
  end

  # Returns ids for rows that are inserted later.
  def self.next_ids(count)
    connection.select_values(sanitize_sql(["SELECT next_ids(5, 'photos_id_seq', ?)", count]))
  end
end

# The tables of its subclasses are in shards.
class ShardRecord < ActiveRecord::Base
  self.abstract_class = true

  # Runs the block in one transaction, in which the tables are those of this shard. The search_path ends with the
  # transaction, so this works through PgBouncer. The query cache is off, because it does not know of shards.
  def self.on_shard(shard)
    raise "a transaction is open already" if connection.transaction_open?

    uncached do
      transaction do
        path = "SELECT set_config('search_path', insta_ids.schema_of(?) || ', public', true)"
        connection.execute(sanitize_sql([path, shard]))
        forget_missing_tables
        yield
      end
    end
  end

  # ActiveRecord remembers that a table is missing when a model is first used outside of on_shard.
  def self.forget_missing_tables
    cache = connection.schema_cache
    tables = ShardRecord.descendants.filter_map(&:table_name)
    tables.each { |table| cache.clear_data_source_cache!(table) unless cache.data_source_exists?(table) }
  end
  private_class_method :forget_missing_tables

  def self.shard_of(user)
    connection.select_value(sanitize_sql(["SELECT insta_ids.shard_of(?)", user]))
  end

  # The errors of a server on which the shard is fenced or no longer exists. Nothing was written.
  MOVED = [PG::ReadOnlySqlTransaction, PG::UndefinedTable, PG::InvalidSchemaName].freeze

  # Runs the block again while the shard moves. The block looks up the shard's server each time. It gives up after about so many
  # seconds.
  def self.with_retry(limit: 10)
    clock = -> { Process.clock_gettime(Process::CLOCK_MONOTONIC) }
    deadline = clock.call + limit
    pause = 0.01
    begin
      yield
    rescue ActiveRecord::StatementInvalid => error
      raise unless MOVED.include?(error.cause.class) && clock.call + pause < deadline

      sleep pause
      pause *= 2
      retry
    end
  end
end

class Post < ShardRecord
end
