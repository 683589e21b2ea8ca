class CreatePhotos < ActiveRecord::Migration[6.1]
  def up
    enable_extension "insta_ids"
    execute "CREATE SEQUENCE photos_id_seq"
    create_table :photos, id: :bigint, default: -> { "next_id(5, 'photos_id_seq')" } do |t|
      t.bigint :user_id, null: false
    end
    execute "ALTER SEQUENCE photos_id_seq OWNED BY photos.id"
  end

  def down
    drop_table :photos
  end
end
