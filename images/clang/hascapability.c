/*
 * Preloaded into bpftool, lets it go on without CAP_BPF and CAP_PERFMON. The
 * kernel takes CAP_SYS_ADMIN for both, and before those two were known a
 * container with all capabilities (Docker 20.10) has no more; but bpftool 7.1
 * looks for them before it asks the kernel.
 */
int cap_get_flag(void *capabilities, int capability, int set, int *value)
{
	*value = 1;
	return 0;
}
