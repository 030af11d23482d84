"""What results look like: tables, figures, reports and audits; reads results only, no torch."""
