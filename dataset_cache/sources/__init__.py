"""Sources: pictures, captions and masks on disk or in memory."""
