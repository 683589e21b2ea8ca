class CreateShards < ActiveRecord::Migration[6.1]
  # create_shards commits by itself. After a failure it can be called again.
  disable_ddl_transaction!

  def up
    execute "CALL insta_ids.create_shards(0, 7)"
  end
end
