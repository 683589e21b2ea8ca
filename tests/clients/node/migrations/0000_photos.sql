CREATE SEQUENCE "public"."likes_id_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1;--> statement-breakpoint
CREATE SEQUENCE "public"."notes_id_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1;--> statement-breakpoint
CREATE SEQUENCE "public"."photos_id_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1;--> statement-breakpoint
CREATE TABLE "likes" (
	"id" bigint PRIMARY KEY DEFAULT next_id(5, 'likes_id_seq'::regclass) NOT NULL,
	"photo_id" bigint NOT NULL
);
--> statement-breakpoint
CREATE TABLE "notes" (
	"id" bigint PRIMARY KEY DEFAULT next_id(5, 'notes_id_seq'::regclass, 'time:41 shard:6 seq:6 epoch:1314220021721'::id_layout) NOT NULL,
	"body" text NOT NULL
);
--> statement-breakpoint
CREATE TABLE "photos" (
	"id" bigint PRIMARY KEY DEFAULT next_id(5, 'photos_id_seq'::regclass) NOT NULL,
	"user_id" bigint NOT NULL,
	CONSTRAINT "photos_shard" CHECK (id_shard("photos"."id") = 5)
);
--> statement-breakpoint
ALTER TABLE "likes" ADD CONSTRAINT "likes_photo_id_photos_id_fk" FOREIGN KEY ("photo_id") REFERENCES "public"."photos"("id") ON DELETE no action ON UPDATE no action;