"""Fetch and prepare records while they are used: data at URLs, or larger than the disk.

  client  lists files at URLs and reads many at once, with credentials from the environment or an AWS profile
  local   files at URLs: seen to have changed, and fetched into temporary files for the project's `decode`
  lru     prepared records on disk, one file each, the newest, limited in bytes, shared by processes
  fetch   threads that fetch and prepare requested records first, then expected ones; counters of what was fetched
  bad     why a file or a record cannot be used; its replacements, bad_samples.jsonl, the limit
  store   how each record becomes an entry of the LRU, and the store of all, as samples see it
  cache   the capability: plan, open

obstore is the extra runner-core[stream]; it is imported when the first client is made.
"""
