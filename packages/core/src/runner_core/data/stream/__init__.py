"""Fetch and prepare records while they are used: data at URLs, or larger than the disk.

  client       lists files at URLs and reads many at once; one client per process
  credentials  from the environment or an AWS profile
  failure      what obstore's errors mean to the user
  local        a record's files at URLs, fetched into temporary files for the project's `decode`
  entry        a prepared record as one file, read as a memory map
  marks        the content marks of files at URLs, and which files changed
  lru          prepared records on disk, the newest, limited in bytes, shared by processes
  source       numbered records, and how each becomes an entry of the LRU
  fetch        threads that fetch and prepare requested records first, then expected ones, each once for all processes
  bad          records that cannot be used: their replacements, bad_samples.jsonl, the limit
  store        the store of all records, as samples see it
  cache        the capability: plan, open
  meter        what a process fetched, and how long it took

obstore is the extra runner-core[stream]; it is imported when the first client is made.
"""
