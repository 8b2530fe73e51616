package rundir

// FilesUpTo is Files with another number of files and folders that there may be.
func (f *Folder) FilesUpTo(under string, most int) ([]string, error) { return f.files(under, most) }
