#!/bin/sh
# Sends a broker's access log to the topic `access`, each line once. Run it every minute:
#
#   memq topic create access --retention 90d --dedup-window 1d
#   * * * * *  MEMQ_PROFILE=access-log access-topic.sh /var/log/memq/access.log
#
# It moves the log aside, and sends what it moved aside a run before, when the broker has ceased to
# write there. What could not be sent is sent by the next run, with the id of the first attempt: so
# a line that has arrived is not there twice, for as long as the topic's dedup_window.

set -eu
log=$1
id=access-$(hostname)-$(printf %s "$log" | cksum | cut -d ' ' -f 1)
for file in "$log".[0-9]*; do
    [ -e "$file" ] || continue
    second=${file##*.}
    memq produce access --input "$file" --producer-id "$id" --epoch "$second" \
        --timestamp "$(date -u -d "@$second" +%Y-%m-%dT%H:%M:%SZ)" -o json
    rm "$file"
done
if [ -s "$log" ]; then
    mv -n "$log" "$log.$(date +%s)"
fi
