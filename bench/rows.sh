# What defaults and their CHECK cost a row.
# shellcheck shell=bash
printf 'Cost of a row:\n'
sql -c 'CREATE DATABASE rows'
sql -d rows -c 'CREATE EXTENSION insta_ids' -v rounds="${ROUNDS:-7}" -f bench/per-row.sql
