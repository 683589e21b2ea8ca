# As many shards as ids of Instagram's layout have, of one table each: made and checked.
# shellcheck shell=bash
. bench/provision.sh
printf 'Making 8192 shards of one table:\n'
provision 8192 1 1
printf 'Checking them:\n'
looks ours_8192_1 'check()'
