class PrepareShards < ActiveRecord::Migration[6.1]
  def up
    execute "SELECT insta_ids.init(8)"
    execute "SELECT insta_ids.add_node('a', 'host=a dbname=app'), insta_ids.add_node('b', 'host=b dbname=app')"
    execute "SELECT insta_ids.assign(0, 5, 'a'), insta_ids.assign(6, 7, 'b')"
    execute <<~SQL
      SELECT insta_ids.add_migration('0001 posts', $$
          CREATE TABLE posts (id bigint PRIMARY KEY DEFAULT next_id(), user_id bigint NOT NULL)
      $$)
    SQL
  end
end
