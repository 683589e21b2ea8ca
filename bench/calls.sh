# What a call costs.
# shellcheck shell=bash
printf 'Cost of a call:\n'
sql -c 'CREATE SCHEMA insta5' -c 'CREATE SEQUENCE insta5.table_id_seq' -f demo/published.sql
sql -v rounds="${ROUNDS:-7}" -f bench/per-call.sql
