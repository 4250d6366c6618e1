"""Object stores: S3, Google Cloud, Azure, the Hugging Face Hub, and what msc:// reaches;
and reading ahead from them (`read_ahead`)."""
