"""Converting data of other forms into data sets: a conversion, by a layout, of records that any plug-in reads; and the
formats that are read for it alone.

    convert_command  the command
    clearing       what another conversion has left is removed
    conversion     records become a data set; broken ones are listed
    record_layout  records become samples, of the class that `column_guess` finds; `media_files` reads their media
    taken_records  the records that are chosen and not forgotten
    source_kinds   the format of a path, and its source
    sample_files   folders of files, tars
    text_tables    JSON lines, JSON lists, COCO captions, CSV
"""
