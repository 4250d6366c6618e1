"""What was fetched or made once is kept on a local disk: files of stores, encoded samples."""
