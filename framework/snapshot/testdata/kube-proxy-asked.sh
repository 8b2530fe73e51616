get() { exec 3<>"/dev/tcp/127.0.0.1/$1" && printf 'GET %s HTTP/1.0\r\n\r\n' "$2" >&3; }
exec 2>/dev/null
echo; echo '== mode'; get 10249 /proxyMode && cat <&3
echo; echo '== counters'; get 10249 /metrics && grep -e ^HTTP/ -e $'^\r$' -e '^kubeproxy_sync_proxy_rules_latency_microseconds_count ' <&3
echo; echo '== goroutines'; get 10249 '/debug/pprof/goroutine?debug=2' && cat <&3
echo; echo '== log'; for f in /var/log/pods/kube-system_kube-proxy-*/kube-proxy/*.log; do [ "$f" -nt "$log" ] && log=$f; done
grep -cF -e 'Trying to delete rs: 10.96.0.102' "$log"
true
