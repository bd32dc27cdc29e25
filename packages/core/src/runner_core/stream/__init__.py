"""Records that are fetched and prepared while they are used: data at URLs, or larger than the disk.

client   files at URLs: listed, and read many at once; one client a process
failure  what obstore's errors mean to the user
local    a record's files at URLs, fetched into temporary files for the project's `decode`
entry    a prepared record as one file, read as a memory map
lru      prepared records on disk, the newest, never more than so many bytes, shared by processes
source   numbered records, and how each becomes an entry of the LRU
claim    one process fetches what several want
fetch    threads that fetch and prepare what is expected, and first what is waited for
bad      records that cannot be used: what stands in for them, bad_samples.jsonl, when there are too many
store    the store of all records, as samples see it
cache    the capability: plan, open
meter    what a process fetched, and for how long it was at it

obstore is the extra runner-core[stream]; it is imported when the first client is made.
"""
